"""Keys, the file of keys, and how it is followed and edited."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from headrace.access.caller import Caller, Globs
from headrace.access.gate import Gate
from headrace.access.keys import (
    KEY_BYTES,
    NEW_FILE,
    KeyFile,
    WatchedKeys,
    as_keys,
    draw,
    id_of,
    is_digest,
    is_id,
    is_key,
    is_to_be_read,
    parse_keys,
    with_key,
    without_keys,
)
from headrace.access.permissions import ANY, HEALTH, PREDICT, UNDECLARED, VERBS, bits, named
from headrace.base.errors import ConfigError, Conflict, PermissionDenied, Unauthenticated
from headrace.base.files import FileState
from tests.unit.access.keys_of_tests import bearer, entry, gate_of, key_of, written


def test_a_key_is_known_by_its_id_and_its_digest() -> None:
    keys = [draw() for _ in range(100)]
    assert len({key.text for key in keys}) == len({key.id for key in keys}) == 100
    for key in keys:
        assert len(key.text) == KEY_BYTES
        assert id_of(key.text.encode()) == key.id
        assert is_id(key.id)
        assert is_digest(key.digest)
        assert is_key(key.text.encode(), key.digest)
        assert not is_key(key.text[:-1].encode() + b"!", key.digest)
        assert key.text[17:] not in key.digest


@pytest.mark.parametrize(
    "text", [b"", b"hrk_", b"x" * 60, b"hrk_" + b"0" * 12 + b"_" + b"A" * 44, b"\xff" * 60]
)
def test_text_without_the_form_of_a_key_has_no_id(text: bytes) -> None:
    assert id_of(text) is None


def test_verbs_are_bits() -> None:
    for verb in VERBS:
        assert named(bits([verb])) == (verb,)
    assert named(ANY) == VERBS
    assert named(UNDECLARED) == ()


@pytest.mark.parametrize(
    ("globs", "name", "expected"),
    [
        (["ctr*"], "ctr", True),
        (["ctr*"], "ctr_2", True),
        (["ctr*"], "CTR", False),
        (["ctr*"], "xctr", False),
        (["a?c", "b"], "abc", True),
        (["a?c", "b"], "b", True),
        ([], "b", False),
        (["*"], "", True),
        (["b*"], "", False),
        (["[ab]1"], "b1", True),
        (["b"], "b\n", False),
        (["b*"], "b" + "x" * 200, False),
        (["*a*a*a*a*a*a*a*a*a*b"], "a" * 128, False),
    ],
)
def test_patterns_are_those_of_a_shell(globs: list[str], name: str, expected: bool) -> None:
    found = Globs(globs)
    assert [found.match(name) for _ in range(2)] == [expected, expected]


def test_the_cache_of_matched_names_is_bounded() -> None:
    globs = Globs(["a*"])
    for number in range(10_000):
        assert not globs.match(f"name {number}")
    assert len(globs._known) <= 256


WRONG = [
    ("[[key]]\n", "missing required field `name`"),
    ("key = 1\n", "key: expected a list"),
    ("[[key]]\nname = '{}'\nid = 'zz'\ndigest = 'x'\nverbs = []\n", "name"),
    ("", "the file is empty"),
    ("[[key]\n", "not TOML"),
]


@pytest.mark.parametrize(("text", "told"), WRONG)
def test_an_invalid_key_file_is_refused_with_its_name_and_the_fault(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_keys(text, "keys.toml")
    assert error.value.message.startswith("keys.toml: ")
    assert told in error.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "é"),
        ("id", "ABCDEF012345"),
        ("digest", "sha256:00"),
        ("models", ("",)),
        ("models", ("a/b",)),
        ("models", ("a" * 129,)),
        ("spaces", ("\n",)),
        ("expires", datetime(2030, 1, 1)),  # noqa: DTZ001 - it has no zone, which is what is wrong
        ("requests_per_second", -1.0),
        ("rows_per_second", float("nan")),
        ("burst_seconds", -1.0),
        ("concurrent_requests", -1),
        ("priorities", (0,)),
    ],
)
def test_every_setting_of_a_key_is_checked(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected "):
        msgspec.structs.replace(entry("one"), **{field: value})


def test_no_id_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        KeyFile(key=(entry("one"), entry("one")))


def test_a_key_ends() -> None:
    over = msgspec.structs.replace(entry("one"), expires=datetime.now(UTC) - timedelta(seconds=1))
    gate = gate_of(over)
    with pytest.raises(Unauthenticated, match="the key of 'one' expired at 20"):
        gate.admit([bearer("one")], PREDICT)
    assert gate.refused["Unauthenticated"] == 1


def test_a_changed_entry_ends_streams_of_its_key_and_an_unchanged_one_does_not() -> None:
    gate = gate_of(entry("one"), entry("two"))
    one, two = (gate.admit([bearer(name)], PREDICT) for name in ("one", "two"))
    gate.keys = as_keys(KeyFile(key=(entry("one"), entry("two", ["predict"]))), gate.keys)
    assert gate.again(one) == 0.0
    with pytest.raises(Unauthenticated):
        gate.again(two)
    anybody = gate.admit([], HEALTH)
    assert gate.again(anybody) == 0.0


def test_unknown_keys_get_no_counters_of_their_own() -> None:
    gate = gate_of(entry("one"))
    for number in range(1000):
        with pytest.raises(Unauthenticated):
            gate.admit([(b"x-api-key", b"hrk_%012x_" % number + b"A" * 43)], PREDICT)
    assert not gate.calls
    assert gate.refused == {"Unauthenticated": 1000, "PermissionDenied": 0, "OverLimit": 0}


def test_a_route_that_declares_no_verbs_admits_nobody() -> None:
    gate = gate_of(entry("one"), opened=ANY)
    with pytest.raises(PermissionDenied, match="a verb that no key has"):
        gate.admit([bearer("one")], UNDECLARED)
    assert isinstance(gate, Gate)


def test_a_priority_must_be_permitted() -> None:
    caller = Caller("one", ANY)
    caller.check_priority(2)
    with pytest.raises(PermissionDenied, match="permits the priorities 2, 3, not 1"):
        caller.check_priority(1)


# ---- the file as it changes ----

A, B, C = FileState(1, 1, 1, 1, 1), FileState(1, 1, 1, 2, 2), FileState(1, 2, 1, 3, 3)


@pytest.mark.parametrize(
    ("taken", "before", "now", "expected"),
    [
        (A, A, A, False),  # nothing new
        (A, A, B, False),  # written in place just now: perhaps half of it
        (A, B, B, True),  # left alone since
        (A, A, C, True),  # renamed into place: whole
        (A, B, A, False),  # what it was
        (None, None, A, True),  # it was away
    ],
)
def test_a_file_is_read_when_it_is_whole(
    taken: FileState | None, before: FileState | None, now: FileState, expected: bool
) -> None:
    assert is_to_be_read(taken, before, now) is expected


def replaced(file: Path, text: str) -> None:
    file.with_suffix(".new").write_text(text, "utf-8")
    os.replace(file.with_suffix(".new"), file)


def test_a_file_that_is_as_large_and_as_old_as_before_is_read_when_it_was_changed(tmp_path: Path) -> None:
    """As rsync, or an editor that sets times back, leaves it: a key that was revoked is revoked."""
    file = written(tmp_path / "keys.toml", entry("one"))
    watched, before = WatchedKeys(file), file.stat()
    other = file.read_text("utf-8").replace(key_of("one").id, "0" * len(key_of("one").id))
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # as coarse as the file system's clock
        file.write_text(other, "utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert [watched.look() for _ in range(3)].count(True) == 1
    assert set(watched.keys) == {"0" * len(key_of("one").id)}


def test_an_invalid_new_file_keeps_the_old_keys_in_force(tmp_path: Path) -> None:
    file = written(tmp_path / "keys.toml", entry("one"))
    watched = WatchedKeys(file)
    right = file.read_text("utf-8")
    assert not watched.look()
    for text in ("[[key]", "", right.replace("predict", "fly")):
        replaced(file, text)
        assert not watched.look()
        assert watched.problem
        assert set(watched.keys) == {key_of("one").id}
    file.unlink()
    assert not watched.look()
    assert "does not exist" in watched.problem
    file.write_text(right, "utf-8")
    while not watched.look():  # at the second look it has been left alone
        pass
    assert watched.problem == ""


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_file_that_could_not_be_read_is_read_later(tmp_path: Path, is_renamed: bool) -> None:
    """A key that was revoked in that moment would go on to permit."""
    file = written(tmp_path / "keys.toml", entry("one"), entry("two"))
    fewer = without_keys(file.read_text("utf-8"), [key_of("one").id], "f")
    watched = WatchedKeys(file)
    if is_renamed:
        replaced(file, fewer)
    else:
        file.write_text(fewer, "utf-8")
    with no_descriptors():
        for _ in range(3):
            assert not watched.look()
    assert "Too many open files" in watched.problem
    assert watched.look()
    assert set(watched.keys) == {key_of("two").id}
    assert not watched.look()


# ---- editing ----


def test_keys_come_and_go_and_comments_stay() -> None:
    text = with_key(NEW_FILE, entry("one"), "f")
    text = with_key(text + "# about the second\n", entry("two", ["metrics"], [], []), "f")
    text = with_key(text, entry("three"), "f")
    assert [one.name for one in parse_keys(text, "f").key] == ["one", "two", "three"]
    fewer = without_keys(text, [key_of("two").id], "f")
    assert [one.name for one in parse_keys(fewer, "f").key] == ["one", "three"]
    assert fewer.startswith(NEW_FILE)
    none = without_keys(fewer, [key_of("one").id, key_of("three").id], "f")
    assert parse_keys(none, "f").key == ()
    assert without_keys(none, ["nothing"], "f") == none


def test_all_settings_of_an_entry_are_written() -> None:
    full = msgspec.structs.replace(
        entry("one", ["predict", "admin"], ["a*", "b[\"']c"], ["*"]),
        expires=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        requests_per_second=10.5,
        rows_per_second=1e6,
        burst_seconds=2.0,
        concurrent_requests=7,
        priorities=(1, 2),
    )
    assert parse_keys(with_key(NEW_FILE, full, "f"), "f").key == (full,)


def test_a_key_that_cannot_be_cut_out_is_a_conflict() -> None:
    one = entry("one")
    inline = f'key = [{{name = "one", id = "{one.id}", digest = "{one.digest}", verbs = []}}]\n'
    with pytest.raises(Conflict, match="change it with an editor"):
        without_keys(inline, [one.id], "f")


def test_keys_of_a_file_and_patterns_of_a_key_are_bounded() -> None:
    head = '[[key]]\nname = "n"\nid = "{:012x}"\ndigest = "sha256:{:064x}"\n'
    block = head + 'verbs = ["predict"]\nmodels = ["*"]\n'
    with pytest.raises(ConfigError, match="key: expected at most 10000 keys, got '10001'"):
        parse_keys("".join(block.format(one, one) for one in range(10_001)), "keys.toml")
    patterns = ", ".join(f'"m{one}"' for one in range(1001))
    with pytest.raises(ConfigError, match="models: expected at most 1000 patterns, got '1001'"):
        parse_keys(block.format(1, 1).replace('"*"', patterns), "keys.toml")
