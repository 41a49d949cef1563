"""The control record's file: whole or not at all, one change at a time; nothing waits without end."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, Conflict, FailedPrecondition
from headrace.versions.control_record import LARGEST_RECORD_BYTES
from headrace.versions.control_store import FileStore
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK


def test_nothing_is_left_beside_the_record_but_an_empty_lock(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.swap(store.swap(store.read(), b"one"), b"two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        CONTROL_FILE: b"two",
        CONTROL_LOCK: b"",
    }


def test_reading_makes_nothing(tmp_path: Path) -> None:
    FileStore(tmp_path).read()
    assert not list(tmp_path.iterdir())


def test_others_are_waited_for_but_not_without_end(tmp_path: Path) -> None:
    with (
        FileStore(tmp_path).alone(),
        pytest.raises(Conflict, match=r"other processes have been changing .* for 0\.05 s"),
    ):
        FileStore(tmp_path, patience_seconds=0.05).swap(FileStore(tmp_path).read(), b"one")
    assert FileStore(tmp_path).read().content is None


def test_who_waits_has_its_turn(tmp_path: Path) -> None:
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


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=f"{CONTROL_LOCK}.* cannot be opened: No such file"):
        FileStore(tmp_path / "gone").swap(FileStore(tmp_path).read(), b"one")


def test_a_lock_that_others_made_and_only_read_is_enough(tmp_path: Path) -> None:
    (tmp_path / CONTROL_LOCK).touch(mode=0o444)
    FileStore(tmp_path).swap(FileStore(tmp_path).read(), b"one")


def test_who_may_read_the_directory_may_read_what_was_decided(tmp_path: Path) -> None:
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
def test_what_is_no_file_to_be_locked_is_refused_without_waiting(
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
def test_what_cannot_be_read_is_neither_waited_for_nor_replaced(
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
