"""Reading what anybody may have put there, and writing what appears whole or not at all.

Whatever a name leads to, reading ends: it takes ordinary files only, up to a size, and never waits. (A named
pipe would be waited for, a device has no end.) What is written gets its name when it is complete, and what
had the name before keeps it until then.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from headrace.errors import FailedPrecondition

_ABANDONED_SECONDS = 60.0
# Where nobody can hold a lock, silence must tell: nothing was written for so long.
_SILENT_SECONDS = 3600.0
_UNFINISHED = ".unfinished"
_BUFFER_BYTES = 2**20
_SORTS = (
    (stat.S_ISDIR, errno.EISDIR, "a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "a pipe"),
    (stat.S_ISSOCK, errno.EINVAL, "a socket"),
    (stat.S_ISCHR, errno.EINVAL, "a device"),
    (stat.S_ISBLK, errno.EINVAL, "a device"),
)


class FileState(NamedTuple):
    """Which file it is, and what changes when its content does: as coarse as the file system's clock.

    Attributes:
        device: Where it lies.
        inode: Which it is there.
        size_bytes: How large it is.
        written_ns: When it was written last, or what somebody has set that to.
        changed_ns: When it, or what the system knows of it, was changed last; nobody can set that.
    """

    device: int
    inode: int
    size_bytes: int
    written_ns: int
    changed_ns: int


def state_of(status: os.stat_result) -> FileState:
    """The state of a file, by what the system says of it."""
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def file_state(file: Path) -> FileState | None:
    """The state of a file, or of what a link leads to; None where there is none to be had."""
    try:
        return state_of(os.stat(file))
    except OSError:
        return None


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Turn what the system refuses into a FailedPrecondition that says what was wanted.

    Raises:
        FailedPrecondition: An OSError came.
    """
    try:
        yield
    except OSError as error:
        raise FailedPrecondition(f"{what}: {error.strerror or error}") from error


def is_visible(name: str) -> bool:
    """Whether a name has no dot in front; file managers leave ``.DS_Store`` and ``._model.onnx``."""
    return name[0] != "."


def visible_files(directory: Path) -> list[Path]:
    """All files below a directory but dot files, and those in directories of such names; sorted."""
    files = (one for one in directory.rglob("*") if one.is_file())
    return sorted(one for one in files if all(map(is_visible, one.relative_to(directory).parts)))


def open_file(file: Path) -> io.FileIO:
    """Open an ordinary file for reading, without a buffer and without ever waiting.

    Raises:
        OSError: It is not there, cannot be read, or is no ordinary file.
    """
    try:
        _check_ordinary(os.stat(file))  # before it is opened: opening a device may do something
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a name with a NUL in it
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        _check_ordinary(os.fstat(descriptor))
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(file: Path, most_bytes: int) -> bytes:
    """Read an ordinary file whole.

    Args:
        file: The file.
        most_bytes: The size above which it is refused.

    Raises:
        OSError: It is not there, cannot be read, is no ordinary file, or is too large.
    """
    with open_file(file) as opened:
        return _read(opened, most_bytes)


def read_text(file: Path, most_bytes: int, *, ordinary: bool = True) -> str:
    """Read a text in UTF-8 whole.

    Args:
        file: The file.
        most_bytes: The size above which it is refused.
        ordinary: Whether it must be an ordinary file; what a person names may also be a pipe.

    Raises:
        OSError: It is not there, cannot be read, is too large, or is not UTF-8.
    """
    with open_file(file) if ordinary else open(file, "rb", buffering=0) as opened:
        content = _read(opened, most_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8: {error.reason} at byte {error.start}") from error


def _check_ordinary(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    for is_of_sort, number, name in _SORTS:
        if is_of_sort(status.st_mode):
            raise OSError(number, f"expected a file, got {name}")
    raise OSError(errno.EINVAL, "expected a file")


def _read(opened: io.FileIO, most_bytes: int) -> bytes:
    content = bytearray()
    while piece := opened.read(min(_BUFFER_BYTES, most_bytes + 1 - len(content))):
        content += piece
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than the {most_bytes} bytes that are read")
    return bytes(content)


@contextmanager
def whole_file(file: Path, *, synced: bool = True) -> Iterator[BinaryIO]:
    """Write a file that gets its name when it is complete; nothing is left behind when writing fails.

    What writers of this file that were killed have left is removed first.

    Args:
        file: Its name; what has it now is replaced.
        synced: Whether it shall survive a power cut that comes right after.

    Raises:
        OSError: It cannot be written.
    """
    _sweep_files(file)
    draft = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with draft.open("xb", buffering=_BUFFER_BYTES) as opened:
            with suppress(OSError):  # as in `draft_directory`
                fcntl.flock(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield opened
            if synced:
                opened.flush()
                os.fsync(opened.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    if synced:
        sync_directory(file.parent)


def _sweep_files(file: Path) -> None:
    with suppress(OSError), os.scandir(file.parent) as entries:
        for entry in entries:
            is_draft = entry.name.startswith(f".{file.name}.") and entry.name.endswith(_UNFINISHED)
            if is_draft and entry.is_file(follow_symlinks=False) and is_abandoned(Path(entry.path)):
                os.unlink(entry.path)


def write_file(file: Path, content: bytes) -> None:
    """Write a file's content, as ``whole_file`` does, for all who may read its directory.

    Raises:
        OSError: It cannot be written.
    """
    with whole_file(file) as opened:
        let_read(opened.fileno(), file.parent)
        opened.write(content)


def let_read(descriptor: int, directory: Path) -> None:
    """Let those read a file who may read its directory, whatever the umask of who has made it.

    Raises:
        OSError: The directory is not there.
    """
    wanted = os.stat(directory).st_mode & (stat.S_IRGRP | stat.S_IROTH)
    has = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if has | wanted != has:
        with suppress(OSError):  # it is somebody else's, or its file system has no permissions
            os.fchmod(descriptor, has | wanted)


@contextmanager
def draft_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A directory to be filled and then renamed; removed at the end if it is there still.

    It is locked as long as somebody lives who writes to it, so that what a killed process left can be told:
    ``is_abandoned``.

    Args:
        parent: Where it is made.
        prefix: What its name begins with.

    Raises:
        OSError: It cannot be made.
    """
    draft = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = -1
    try:
        draft.mkdir()
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks, as NFS is for directories: see `is_abandoned`
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def is_abandoned(draft: Path) -> bool:
    """Whether nobody writes to a draft, directory or file: who does holds a lock on it, and takes it at once.

    On file systems without such locks, it is abandoned when nothing in it has changed for an hour.
    """
    now, is_lockable = datetime.now(UTC).timestamp(), True
    try:
        descriptor = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        is_lockable = False
    finally:
        os.close(descriptor)
    try:
        if is_lockable:
            return now - os.stat(draft).st_mtime > _ABANDONED_SECONDS
        return now - _last_change(draft) > _SILENT_SECONDS
    except OSError:  # gone, or being filled
        return False


def _last_change(draft: Path) -> float:
    changes = [os.stat(draft).st_mtime]
    for folder, _, files in os.walk(draft):
        changes += [os.stat(os.path.join(folder, name)).st_mtime for name in (".", *files)]
    return max(changes)


def sync_tree(directory: Path) -> None:
    """Make a directory's files, and the names in it, survive a power cut.

    Raises:
        OSError: They cannot be written to disk.
    """
    for folder, _, files in os.walk(directory):
        for name in files:
            with open_file(Path(folder, name)) as opened:
                os.fsync(opened.fileno())
        sync_directory(Path(folder))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut.

    Raises:
        OSError: They cannot be written to disk.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
