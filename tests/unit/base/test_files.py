"""Files: reading ends whatever a name leads to; what is written is there whole, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.base import files
from headrace.base.files import draft_directory, is_abandoned, read_file, read_text, whole_file, write_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---- Reading ----


def test_an_ordinary_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger than the 4 bytes") as caught:
        read_file(tmp_path / "a", 4)
    assert caught.value.errno == errno.EFBIG


def test_a_huge_file_is_not_read_to_find_that_out(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "a", 100)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b", 1) == b"x"


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.mkdir(), "expected a file, got a directory"),
        (os.mkfifo, "expected a file, got a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a file, got a device"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: None, "No such file"),
    ],
    ids=["directory", "pipe", "device", "loop", "missing"],
)
def test_special_files_are_refused_without_blocking(tmp_path: Path, made: object, said: str) -> None:
    assert callable(made)
    made(tmp_path / "a")
    with pytest.raises(OSError, match=said):
        read_file(tmp_path / "a", 100)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "a"))
        with pytest.raises(OSError, match="expected a file, got a socket"):
            read_file(tmp_path / "a", 100)


def test_names_that_cannot_be_are_not_there(tmp_path: Path) -> None:
    for name in ("a\0b", "a" * 5000):
        with pytest.raises(OSError, match=r"null|too long"):
            read_file(tmp_path / name, 100)
        for ordinary in (True, False):
            with pytest.raises(OSError, match=r"null|too long"):
                read_text(tmp_path / name, 100, ordinary=ordinary)


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("ü".encode() + b"\xff")
    with pytest.raises(OSError, match="not UTF-8: invalid start byte at byte 2"):
        read_text(tmp_path / "a", 100)


def test_a_file_named_by_a_person_may_be_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"ab")
    os.close(writing)
    try:
        assert read_text(Path(f"/dev/fd/{reading}"), 100, ordinary=False) == "ab"
    finally:
        os.close(reading)
    with pytest.raises(OSError, match="larger than"):
        read_text(Path("/dev/zero"), 100, ordinary=False)


# ---- Writing ----


def test_a_complete_file_replaces_the_previous_one(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_file(file, b"old")
    with whole_file(file) as opened:
        opened.write(b"new")
        opened.flush()
        assert file.read_bytes() == b"old"
        assert len(names(tmp_path)) == 2
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")

    def write() -> None:
        with whole_file(tmp_path / "a") as opened:
            opened.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_file_is_readable_as_any_new_one(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_file(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_draft_is_gone_unless_it_was_renamed(tmp_path: Path) -> None:
    with draft_directory(tmp_path, ".x-") as draft:
        (draft / "deep").mkdir()
    assert names(tmp_path) == []
    with draft_directory(tmp_path, ".x-") as draft:
        draft.rename(tmp_path / "a")
    assert names(tmp_path) == ["a"]


def test_an_old_unlocked_draft_is_abandoned(tmp_path: Path) -> None:
    with draft_directory(tmp_path, ".x-") as draft:
        os.utime(draft, (0, 0))
        assert not is_abandoned(draft)
        kept = draft.rename(tmp_path / "kept")
    assert is_abandoned(kept)
    os.utime(kept)
    assert not is_abandoned(kept)


def test_a_draft_of_a_killed_process_is_abandoned_once_it_is_old(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from headrace.base.files import draft_directory
        with draft_directory(Path(sys.argv[1]), ".x-"):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    assert is_abandoned(left)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_a_draft_in_which_nothing_changed_for_an_hour_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS locks no directories: what killed publishers left there stayed for ever."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with draft_directory(tmp_path, ".x-") as draft:
        (draft / "deep").mkdir()
        (draft / "deep" / "weights").write_bytes(b"x")
        os.utime(draft, (0, 0))
        os.utime(draft / "deep", (0, 0))
        assert not is_abandoned(draft)
        os.utime(draft / "deep" / "weights", (0, 0))
        assert is_abandoned(draft)


def test_drafts_of_killed_writers_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from headrace.base.files import whole_file
        with whole_file(Path(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    file = tmp_path / "rows"
    subprocess.run([sys.executable, "-c", program, str(file)], check=False)
    (left,) = tmp_path.iterdir()
    write_file(file, b"young drafts stay")
    assert names(tmp_path) == [left.name, "rows"]
    os.utime(left, (0, 0))
    other = tmp_path / ".rowsmore.1-ab.unfinished"
    other.write_bytes(b"")
    os.utime(other, (0, 0))
    with whole_file(file) as mine:
        (held,) = set(tmp_path.glob(".rows.*")) - {left}
        os.utime(held, (0, 0))
        write_file(file, b"beside another writer")
        mine.write(b"whole")
    assert names(tmp_path) == [other.name, "rows"]
    assert file.read_bytes() == b"whole"


def test_a_whole_tree_is_synced_and_a_pipe_in_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"x")
    files.sync_tree(tmp_path)
    os.mkfifo(tmp_path / "deep" / "b")
    with pytest.raises(OSError, match="got a pipe"):
        files.sync_tree(tmp_path)


def test_reading_inherits_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with files.open_file(tmp_path / "a") as opened:
        assert fcntl.fcntl(opened.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
