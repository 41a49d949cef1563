"""What earlier looks have read: kept while a file looks the same, never beside a change within one tick."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.lifecycle.model_listing import (
    RENEWED_SECONDS,
    SETTLED_SECONDS,
    Listing,
    Recall,
    list_models,
    look,
)
from headrace.versions.manifest import publish
from headrace.versions.pins_and_holds import pin, unpin
from tests.unit.lifecycle.watch import put


class Hand:
    """A clock that the test turns."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def reading(*contents: str) -> Callable[[], str]:
    """A file that is read so often, and what it holds then."""
    left = list(contents)
    return lambda: left.pop(0)


def test_content_is_cached_once_its_metadata_has_settled() -> None:
    clock = Hand()
    recall, read = Recall(clock, lambda: 0.5), reading("a", "b", "c", "d")
    assert recall.read("m", "p", 1, read) == "a"
    clock.now += SETTLED_SECONDS - 0.1
    assert recall.read("m", "p", 1, read) == "b", "written twice within one tick of its file system's clock"
    clock.now += 0.1
    assert recall.read("m", "p", 1, read) == "c"
    clock.now += 1.5 * RENEWED_SECONDS - 0.1
    assert recall.read("m", "p", 1, read) == "c"
    clock.now += 0.2
    assert recall.read("m", "p", 1, read) == "d", "what is said of it may be old"


def test_content_with_new_metadata_is_read_until_it_has_settled() -> None:
    clock = Hand()
    recall, read = Recall(clock), reading("a", "b", "c", "d")
    assert recall.read("m", "p", 1, read) == "a"
    clock.now += SETTLED_SECONDS
    assert recall.read("m", "p", 1, read) == "b"
    assert recall.read("m", "p", 2, read) == "c"
    assert recall.read("m", "p", 2, read) == "d"


def test_errors_and_excluded_content_are_not_cached() -> None:
    clock = Hand()
    recall = Recall(clock)

    def fail() -> str:
        raise OSError("it passes")

    for _ in range(3):
        with pytest.raises(OSError, match="it passes"):
            recall.read("m", "p", 1, fail)
        clock.now += SETTLED_SECONDS
    read = reading("a", "b", "c")
    assert recall.read("m", "p", 1, read, lambda one: one != "a") == "a"
    assert recall.read("m", "p", 1, read) == "b"
    assert recall.read("m", "p", 1, read) == "b"
    recall.forget_but({"other"})
    assert recall.read("m", "p", 1, read) == "c"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("ctr", "rank"):
        put(tmp_path / "source")
        for number in (1, 2):
            publish(tmp_path / "source", tmp_path / "models" / name, number)
        (tmp_path / "models" / name / "headrace.toml").write_text("[batching]\ninstances = 2")
        pin(tmp_path / "models" / name, 1)
    return tmp_path / "models"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened."""
    found, system = list[str](), os.open

    def noting(path: Path, flags: int, *args: int, **options: int) -> int:
        found.append(Path(path).name)
        return system(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", noting)
    return found


def test_a_scan_of_unchanged_files_opens_none(root: Path, opened: list[str]) -> None:
    clock = Hand()
    recall = Recall(clock)

    def listed() -> Listing:
        opened.clear()
        return list_models(root, {}, recall=recall)

    before = listed()
    assert {"headrace.toml", "headrace-control.json", "headrace-manifest.json"} <= {*opened}
    clock.now += SETTLED_SECONDS
    assert listed() == before
    assert opened, "now it has settled"
    assert listed() == before
    assert opened == []


def test_each_change_is_seen_at_the_next_scan(root: Path) -> None:
    clock = Hand()
    recall, ctr = Recall(clock), root / "ctr"

    def listed() -> Listing:
        return list_models(root, {}, recall=recall)

    def settle() -> None:
        for _ in range(2):
            listed()
            clock.now += SETTLED_SECONDS
        listed()
        time.sleep(0.02)  # longer than a tick: what is written from now on has another time

    settle()
    file = ctr / "headrace.toml"
    times = os.stat(file)
    file.write_text("[batching]\ninstances = 3")  # as long as before, and with its time put back
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert listed().models["ctr"].settings == "[batching]\ninstances = 3"
    settle()
    file.unlink()
    unpin(ctr)
    put(ctr / "3")
    model = listed().models["ctr"]
    assert (model.settings, model.pin, model.revision, [*model.versions]) == ("", None, 2, [1, 2, 3])
    settle()
    (root / "rank" / "1" / "headrace-manifest.json").write_text("{}")
    found = listed().models["rank"].pin
    assert found is not None
    assert "it is pinned to a version 1 that had another manifest" in found.missing


def test_settings_and_decisions_are_looked_for_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file is replaced by renaming, a listing may lack it (btrfs): its model had none for a look."""
    whole = list_models(root, {}).models["ctr"]
    system = os.scandir

    @contextmanager
    def lacking(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with system(path) as entries:
            yield [entry for entry in entries if not entry.name.startswith("headrace")]

    monkeypatch.setattr(os, "scandir", lacking)
    assert list_models(root, {}).models["ctr"] == whole
    assert whole.settings
    assert whole.pin is not None


def test_a_model_whose_versions_moved_is_found_where_it_is_now(tmp_path: Path) -> None:
    clock = Hand()
    recall = Recall(clock)
    put(tmp_path / "ctr" / "1")
    for _ in range(3):
        list_models(tmp_path / "ctr", {}, recall=recall)  # the model is the directory itself
        clock.now += SETTLED_SECONDS
    (tmp_path / "ctr" / "ctr").mkdir()
    (tmp_path / "ctr" / "1").rename(tmp_path / "ctr" / "ctr" / "1")
    (found,) = list_models(tmp_path / "ctr", {}, recall=recall).models.values()
    assert found.versions == {1: tmp_path / "ctr" / "ctr" / "1"}


def test_where_a_version_lies_is_the_same_without_the_systems_own_word(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "linked").symlink_to(root / "ctr")
    found = look(root / "linked" / "1")
    assert found == look(root / "ctr" / "1")
    assert found.has_manifest

    def none_left(path: Path, flags: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        assert look(root / "linked" / "1") == found
    assert look(root / "ctr" / "2").fingerprint != found.fingerprint
