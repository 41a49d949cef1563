"""The control record: what it says, how it changes, and that it keeps what this headrace does not know."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, Conflict, FailedPrecondition, InvalidRequest
from headrace.versions.control_record import (
    LARGEST_RECORD_BYTES,
    LONGEST_TEXT,
    MOST_CHANGES,
    MOST_HOLDS,
    ControlRecord,
    FileStore,
    Stamp,
    digest_key,
    encode_record,
    number_key,
    parse_record,
    with_hold,
    with_pin,
    without_hold,
    without_pin,
)
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK

EMPTY = parse_record(None)
STAMP = Stamp("2026-11-22T12:00:00+00:00", "ann@host", "worse")
KEY = digest_key("a" * 64)


def record_with(field: bytes) -> bytes:
    return b'{"format": 1, "revision": 1, %s}' % field


def read_again(record: ControlRecord) -> ControlRecord:
    return parse_record(encode_record(record))


def test_a_missing_record_has_no_decisions() -> None:
    assert (EMPTY.revision, EMPTY.pin, EMPTY.versions, EMPTY.history) == (0, None, {}, ())
    assert EMPTY.named_numbers() == frozenset()


def test_a_pin_records_version_user_time_and_reason() -> None:
    record = read_again(with_pin(EMPTY, KEY, 17, STAMP))
    assert record.pin is not None
    assert (record.pin.version, record.pin.number) == (KEY, 17)
    assert (record.pin.at, record.pin.by, record.pin.why) == (STAMP.at, STAMP.by, STAMP.why)
    assert record.revision == 1
    assert record.named_numbers() == {17}


def test_each_holder_has_a_hold_of_its_own() -> None:
    record = with_hold(with_hold(EMPTY, KEY, 17, "audit", STAMP), KEY, 17, "report", STAMP)
    assert read_again(record).versions[KEY].holds.keys() == {"audit", "report"}
    record = without_hold(record, KEY, "audit", STAMP)
    assert record.named_numbers() == {17}
    record = without_hold(record, KEY, "report", STAMP)
    assert record.named_numbers() == frozenset()
    assert KEY not in record.versions, "what says nothing goes"
    assert record.revision == 4


def test_a_change_without_effect_returns_the_same_record() -> None:
    held = with_hold(EMPTY, KEY, 17, "audit", STAMP)
    assert without_pin(held, STAMP) is held
    assert without_hold(held, KEY, "report", STAMP) is held
    assert without_hold(held, number_key(17), "audit", STAMP) is held


def test_the_history_has_user_time_and_reason_of_the_last_changes() -> None:
    record = EMPTY
    for number in range(1, MOST_CHANGES + 6):
        record = with_pin(record, number_key(number), number, STAMP)
    assert len(record.history) == MOST_CHANGES
    assert record.history[-1] == {
        "revision": MOST_CHANGES + 5,
        "at": STAMP.at,
        "by": STAMP.by,
        "what": f"pinned to version {MOST_CHANGES + 5}",
        "why": "worse",
    }
    assert record.history[0]["revision"] == 6


def test_fields_of_a_newer_headrace_are_kept() -> None:
    stored = {
        "format": 1,
        "revision": 5,
        "labels": {"canary": KEY},
        "pin": {"version": KEY, "number": 17, "until": "tomorrow"},
        "versions": {
            KEY: {"number": 17, "verdict": {"passed": True, "loss": 0.25}, "holds": {"a": {"ends": 1}}},
            "blake3:77": {"number": 3, "weight": 2**70},
        },
        "history": [{"what": "a rollout", "step": 3}],
    }
    record = parse_record(json.dumps(stored).encode())
    record = with_hold(record, KEY, 17, "audit", STAMP)
    record = without_hold(without_hold(record, KEY, "audit", STAMP), KEY, "a", STAMP)
    kept = json.loads(encode_record(record))
    assert kept["labels"] == stored["labels"]
    assert kept["pin"] == stored["pin"]
    assert kept["versions"] == {
        KEY: {"number": 17, "verdict": {"passed": True, "loss": 0.25}},
        "blake3:77": {"number": 3, "weight": 2**70},
    }
    assert kept["history"][0] == {"what": "a rollout", "step": 3}
    assert without_pin(record, STAMP).document["labels"] == {"canary": KEY}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON: Input data was truncated"),
        (b"\xff", "not JSON: "),
        (b"[" * 200_000, "not JSON: "),
        (b"[]", "expected a table, got list"),
        (b"{}", "missing required field `format`"),
        (b'{"format": 1}', "missing required field `revision`"),
        (b'{"format": 2, "revision": "?"}', "format 2 is newer than 1; update headrace"),
        (b'{"format": "one"}', "format: expected `int`, got `str`"),
        (b'{"format": 1, "revision": -1}', "revision: expected `int` >= 0"),
        (b'{"format": 1, "revision": 1e300}', "revision: expected `int`, got `float`"),
        (record_with(b'"pin": 17'), "pin: expected"),
        (record_with(b'"pin": {"version": "sha256:1", "number": 1}'), "pin.version: expected"),
        (record_with(b'"pin": {"version": "number:2", "number": 1}'), "number:1, got 'number:2'"),
        (record_with(b'"pin": {"version": "number:2", "number": -2}'), "pin.number: expected"),
        (record_with(b'"versions": {"number:1": {}}'), "versions[...]: object missing required"),
        (record_with(b'"history": [1]'), "history[0]: expected a table"),
    ],
)
def test_an_invalid_record_is_refused_with_file_field_and_advice(content: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_record(content)
    assert caught.value.message.startswith(CONTROL_FILE)
    assert says in caught.value.message
    assert "headrace" in caught.value.message.rpartition("; ")[2]


@pytest.mark.parametrize("text", ["x" * (LONGEST_TEXT + 1), "two\nlines", "\x1b[31m", "\udcff"])
def test_texts_are_short_and_printable(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^why: expected"):
        with_pin(EMPTY, KEY, 17, Stamp("", "ann", text))
    with pytest.raises(InvalidRequest, match=r"^by: expected"):
        with_pin(EMPTY, KEY, 17, Stamp("", text))
    with pytest.raises(InvalidRequest, match=r"^holder: expected"):
        with_hold(EMPTY, KEY, 17, text, STAMP)
    with pytest.raises(InvalidRequest, match=r"^holder: expected a name"):
        with_hold(EMPTY, KEY, 17, "", STAMP)


def test_a_record_too_large_to_be_read_is_not_written() -> None:
    large = {"format": 1, "revision": 1, "verdicts": "x" * (LARGEST_RECORD_BYTES - 100)}
    record = parse_record(json.dumps(large).encode())
    said = rf"would have \d+ bytes, but at most {LARGEST_RECORD_BYTES} are read, with 0 holds; release some"
    with pytest.raises(FailedPrecondition, match=said):
        encode_record(with_pin(record, KEY, 17, STAMP))


def test_there_may_be_so_many_holds_and_no_more() -> None:
    holds = {f"audit-{number}": {"by": "ann@web1", "why": "a complaint"} for number in range(MOST_HOLDS - 1)}
    entries = {KEY: {"number": 17, "holds": holds}}
    record = parse_record(json.dumps({"format": 1, "revision": 1, "versions": entries}).encode())
    full = with_hold(record, number_key(3), 3, "report", STAMP)
    assert parse_record(encode_record(full)) == full, "usual texts fit"
    with pytest.raises(
        FailedPrecondition, match=rf"has {MOST_HOLDS} holds, but may have at most {MOST_HOLDS}; release"
    ):
        with_hold(full, KEY, 17, "another", STAMP)
    again = with_hold(full, KEY, 17, "audit-7", STAMP)
    assert again.holds() == MOST_HOLDS, "who has one may say anew why"
    free = without_hold(full, KEY, "audit-7", STAMP)
    assert with_hold(free, KEY, 17, "another", STAMP).holds() == MOST_HOLDS


def test_a_record_is_json_that_people_can_read() -> None:
    content = encode_record(with_hold(EMPTY, KEY, 17, "Prüfung", STAMP))
    assert b'\n  "revision": 1,\n' in content
    assert "Prüfung" in content.decode()


# The control record's file: whole or not at all, one change at a time; nothing waits without end.


def test_only_an_empty_lock_is_left_beside_the_record(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.swap(store.swap(store.read(), b"one"), b"two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        CONTROL_FILE: b"two",
        CONTROL_LOCK: b"",
    }


def test_reading_makes_nothing(tmp_path: Path) -> None:
    FileStore(tmp_path).read()
    assert not list(tmp_path.iterdir())


def test_waiting_for_the_lock_has_a_timeout(tmp_path: Path) -> None:
    with (
        FileStore(tmp_path).alone(),
        pytest.raises(Conflict, match=r"other processes have been changing .* for 0\.05 s"),
    ):
        FileStore(tmp_path, patience_seconds=0.05).swap(FileStore(tmp_path).read(), b"one")
    assert FileStore(tmp_path).read().content is None


def test_a_waiting_writer_gets_the_lock(tmp_path: Path) -> None:
    done = threading.Event()

    def swap() -> None:
        FileStore(tmp_path).swap(FileStore(tmp_path).read(), b"one")
        done.set()

    thread = threading.Thread(target=swap)
    with FileStore(tmp_path).alone():
        thread.start()
        assert not done.wait(0.05)
    thread.join(120)
    assert done.is_set()


def test_a_file_that_was_edited_by_hand_is_not_replaced(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    read = store.swap(store.read(), b"one")
    (tmp_path / CONTROL_FILE).write_bytes(b"edited")
    with pytest.raises(Conflict, match="changed by another process"):
        store.swap(read, b"two")
    assert (tmp_path / CONTROL_FILE).read_bytes() == b"edited"


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the error comes from the same call."""
    store = FileStore(tmp_path)
    read = store.swap(store.read(), b"one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(FailedPrecondition, match=f"{CONTROL_FILE} cannot be changed: File too large"):
            store.swap(read, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.read() == read
    assert {path.name for path in tmp_path.iterdir()} == {CONTROL_FILE, CONTROL_LOCK}
    store.swap(read, b"two")


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=f"{CONTROL_LOCK}.* cannot be opened: No such file"):
        FileStore(tmp_path / "gone").swap(FileStore(tmp_path).read(), b"one")


def test_a_lock_that_others_made_and_only_read_is_enough(tmp_path: Path) -> None:
    (tmp_path / CONTROL_LOCK).touch(mode=0o444)
    FileStore(tmp_path).swap(FileStore(tmp_path).read(), b"one")


def test_the_record_has_the_read_permissions_of_its_directory(tmp_path: Path) -> None:
    """Who decides has a umask of 077, as root often has; servers and trainers run as somebody else."""
    before = os.umask(0o077)
    try:
        for mode, may in ((0o755, 0o644), (0o750, 0o640), (0o700, 0o600)):
            directory = tmp_path / str(mode)
            directory.mkdir()
            directory.chmod(mode)
            FileStore(directory).swap(FileStore(directory).read(), b"one")
            assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {may}
    finally:
        os.umask(before)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("x")],
    ids=["directory", "pipe", "device", "link"],
)
def test_a_lock_that_is_not_an_ordinary_file_is_refused_without_blocking(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / CONTROL_LOCK)
    with pytest.raises(FailedPrecondition, match=CONTROL_LOCK):
        FileStore(tmp_path).swap(FileStore(tmp_path).read(), b"one")
    assert FileStore(tmp_path).read().content is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "expected a file, got a directory"),
        (os.mkfifo, "expected a file, got a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a file, got a device"),
        (lambda path: path.write_bytes(bytes(LARGEST_RECORD_BYTES + 1)), "larger than the 1048576 bytes"),
    ],
    ids=["directory", "pipe", "device", "large"],
)
def test_an_unreadable_record_is_an_error_and_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    nothing = FileStore(tmp_path).read()
    make(tmp_path / CONTROL_FILE)
    with pytest.raises(ConfigError, match=f"{CONTROL_FILE} cannot be read: {says}"):
        FileStore(tmp_path).read()
    with pytest.raises(ConfigError, match=f"{CONTROL_FILE} cannot be read: {says}"):
        FileStore(tmp_path).swap(nothing, b"one")


def test_the_lock_is_one_that_other_programs_see(tmp_path: Path) -> None:
    with (
        FileStore(tmp_path).alone(),
        (tmp_path / CONTROL_LOCK).open("rb") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
