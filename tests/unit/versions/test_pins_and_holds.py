"""Pins and holds beside a model's versions, what an earlier build pinned, and what ``versions`` lists."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, NotFound
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK, MANIFEST_FILE, PIN_FILE, version_directories
from headrace.versions.manifest import manifest_digest, publish
from headrace.versions.pins_and_holds import (
    PinnedTo,
    find_pin,
    hold,
    let_go,
    list_versions,
    pin,
    read_control,
    undisturbed,
    unpin,
)
from headrace.versions.retention import hide_versions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "ctr"
    for size in (10, 20, 30):
        publish(lambda draft, size=size: (draft / "model.onnx").write_bytes(b"x" * size), directory)
    return directory


def pinned(model: Path) -> PinnedTo | None:
    return find_pin(read_control(model), version_directories(model))


# ---- Pins and holds ----


def test_a_pin_records_the_manifest_the_user_and_the_reason(model: Path) -> None:
    assert pinned(model) is None
    pin(model, 2, why="worse on mobile", by="ann")
    found = read_control(model).pin
    assert found is not None
    assert (found.version, found.number) == (f"sha256:{manifest_digest(model / '2')}", 2)
    assert (found.by, found.why) == ("ann", "worse on mobile")
    assert found.at.endswith("+00:00")
    assert pinned(model) == PinnedTo(2)
    pin(model, 1)
    assert pinned(model) == PinnedTo(1)
    assert "@" in read_control(model).history[-1]["by"]  # type: ignore[operator]


def test_unpinning_follows_the_policy_again(model: Path) -> None:
    assert unpin(model).revision == 0
    assert not (model / CONTROL_FILE).exists(), "nothing was decided"
    pin(model, 2)
    unpin(model, why="mended")
    assert pinned(model) is None
    assert [one["what"] for one in read_control(model).history] == [
        "pinned to version 2",
        "released from version 2",
    ]


@pytest.mark.parametrize("decide", [pin, lambda model, number: hold(model, number, "audit")])
def test_a_missing_version_can_be_neither_pinned_nor_held(
    model: Path, decide: Callable[[Path, int], object]
) -> None:
    with pytest.raises(NotFound, match="ctr has no version 9; it has: 1, 2, 3"):
        decide(model, 9)
    assert read_control(model).revision == 0


def test_each_holder_has_its_own_hold_which_outlives_the_version(model: Path) -> None:
    hold(model, 2, "audit", why="a complaint")
    hold(model, 2, "report")
    let_go(model, 2, "audit")
    assert read_control(model).named_numbers() == {2}
    shutil.rmtree(model / "2")
    assert read_control(model).named_numbers() == {2}
    let_go(model, 2, "report")
    assert read_control(model).named_numbers() == frozenset()
    assert read_control(model).revision == 4


def test_letting_go_of_a_missing_hold_is_an_error_that_lists_the_holders(model: Path) -> None:
    with pytest.raises(NotFound, match=r"ctr: version 2 is not held by 'audit', but by nobody"):
        let_go(model, 2, "audit")
    for number in range(7):
        hold(model, 2, f"team-{number}")
    said = r"not held by 'audit', but by 'team-0', 'team-1', 'team-2', 'team-3', 'team-4' and 2 more$"
    with pytest.raises(NotFound, match=said):
        let_go(model, 2, "audit")
    assert len(read_control(model).holders(2)) == 7


def test_let_go_removes_all_holds_on_a_number(model: Path) -> None:
    """What it held before there was a manifest, and what it held since."""
    manifest = (model / "2" / MANIFEST_FILE).read_bytes()
    (model / "2" / MANIFEST_FILE).unlink()
    hold(model, 2, "audit")
    (model / "2" / MANIFEST_FILE).write_bytes(manifest)
    hold(model, 2, "audit")
    assert len(read_control(model).versions) == 2
    let_go(model, 2, "audit")
    assert read_control(model).named_numbers() == frozenset()


def test_a_version_without_a_manifest_is_meant_by_its_number(model: Path) -> None:
    (model / "2" / MANIFEST_FILE).unlink()
    pin(model, 2)
    assert read_control(model).pin.version == "number:2"  # type: ignore[union-attr]
    assert pinned(model) == PinnedTo(2)
    shutil.copy(model / "1" / MANIFEST_FILE, model / "2")
    assert pinned(model) == PinnedTo(2), "whatever lies there was meant"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (shutil.rmtree, "it is pinned to version 2, which does not exist"),
        (lambda path: (path / MANIFEST_FILE).write_text("{}"), "a version 2 that had another manifest"),
        (lambda path: (path / MANIFEST_FILE).unlink(), "a version 2 that had another manifest"),
    ],
    ids=["gone", "another", "without"],
)
def test_another_version_under_its_number_is_not_the_one_that_was_pinned(
    model: Path, spoil: Callable[[Path], object], says: str
) -> None:
    pin(model, 2)
    spoil(model / "2")
    found = pinned(model)
    assert found is not None
    assert found.version == 2
    assert says in found.missing


def test_a_manifest_that_cannot_be_read_is_not_taken_for_the_pinned_one(model: Path) -> None:
    pin(model, 2)
    (model / "2" / MANIFEST_FILE).unlink()
    (model / "2" / MANIFEST_FILE).mkdir()
    assert "it is pinned to version 2: " in pinned(model).missing  # type: ignore[union-attr]


def test_a_broken_record_is_never_overwritten(model: Path) -> None:
    (model / CONTROL_FILE).write_text("{")
    for decide in (lambda: pin(model, 2), lambda: unpin(model), lambda: read_control(model)):
        with pytest.raises(ConfigError, match=f"{CONTROL_FILE}: not JSON"):
            decide()
    assert (model / CONTROL_FILE).read_text() == "{"


def test_a_pin_during_a_deletion_finds_its_version_or_is_refused(model: Path) -> None:
    """Between a trainer's look at what is pinned and its deletion, nobody pins what is about to go."""
    refused = threading.Event()

    def try_to_pin() -> None:
        with pytest.raises(NotFound):
            pin(model, 1)
        refused.set()

    thread = threading.Thread(target=try_to_pin)
    with undisturbed(model):
        thread.start()
        assert read_control(model).named_numbers() == frozenset()
        assert not refused.wait(0.05)
        hide_versions(model, [1])
    thread.join(120)
    assert refused.is_set()
    assert pinned(model) is None


# ---- What an earlier build pinned ----


def test_a_pin_of_an_earlier_build_counts_without_being_touched(model: Path) -> None:
    (model / PIN_FILE).write_text("2\n")
    assert pinned(model) == PinnedTo(2)
    assert read_control(model).named_numbers() == {2}
    assert not (model / CONTROL_FILE).exists(), "who only reads writes nothing"


def test_the_next_change_takes_it_over(model: Path) -> None:
    (model / PIN_FILE).write_text("2\n")
    hold(model, 1, "audit")
    assert not (model / PIN_FILE).exists()
    assert pinned(model) == PinnedTo(2)
    taken = read_control(model).history[0]
    assert (taken["what"], taken["by"]) == ("pinned to version 2", PIN_FILE)


def test_a_release_releases_it_too(model: Path) -> None:
    (model / PIN_FILE).write_text("2\n")
    unpin(model)
    assert not (model / PIN_FILE).exists()
    assert pinned(model) is None


def test_a_pin_of_an_earlier_build_takes_precedence_over_the_record(model: Path) -> None:
    pin(model, 3)
    (model / PIN_FILE).write_text("1\n")
    assert pinned(model) == PinnedTo(1)
    (model / PIN_FILE).unlink()
    assert pinned(model) == PinnedTo(3)


def test_a_kill_during_the_migration_of_an_old_pin_loses_nothing(model: Path) -> None:
    pin(model, 2)
    (model / PIN_FILE).write_text("2\n")  # the record is written, and the file is there still
    before = read_control(model)
    assert before.pin is not None
    assert before.pin.version.startswith("sha256:")
    hold(model, 1, "audit")
    assert read_control(model).pin == before.pin
    assert not (model / PIN_FILE).exists()


@pytest.mark.parametrize("text", ["two", "", "1 2", "-1", "\x00"])
def test_an_invalid_pin_of_an_earlier_build_is_refused_with_advice(model: Path, text: str) -> None:
    (model / PIN_FILE).write_text(text)
    for decide in (lambda: read_control(model), lambda: pin(model, 2)):
        with pytest.raises(ConfigError, match=rf"^{PIN_FILE}: expected the number .*; remove it"):
            decide()


# ---- What is listed ----


def test_versions_are_listed_newest_first_with_what_is_known_of_them(model: Path) -> None:
    pin(model, 2)
    hold(model, 3, "report")
    hold(model, 3, "audit")
    (model / "1" / MANIFEST_FILE).write_text("{")
    (model / "4").mkdir()
    listed = list_versions(model, read_control(model))
    assert [(one.version, one.pinned) for one in listed] == [(4, False), (3, False), (2, True), (1, False)]
    assert [one.holders for one in listed] == [(), ("audit", "report"), (), ()]
    assert listed[0].created == ""
    assert listed[1].created.endswith("+00:00")
    assert listed[1].size_bytes > listed[2].size_bytes > 20
    assert [bool(one.problem) for one in listed] == [False, False, False, True]


def test_a_pin_adds_only_the_record_and_its_lock(model: Path) -> None:
    before = {path.name for path in model.iterdir()}
    pin(model, 2)
    assert {path.name for path in model.iterdir()} - before == {CONTROL_FILE, CONTROL_LOCK}
