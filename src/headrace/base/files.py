"""Safe reading of files that anybody may have written, and atomic writing.

Reading always ends: it accepts only ordinary files up to a size, and never blocks. (Opening a named pipe
would block, and a device has no end.) A file is written under a temporary name and renamed when complete.
Until then the previous file keeps its name.
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

from headrace.base.errors import FailedPrecondition

_ABANDONED_SECONDS = 60.0
# Without file locks, a draft counts as abandoned after this time without a write.
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
    """Identity of a file and of its content, as precise as the file system's clock.

    Attributes:
        device: The device number.
        inode: The inode number.
        size_bytes: The size in bytes.
        written_ns: Modification time in nanoseconds; programs can set it to any value.
        changed_ns: Status change time in nanoseconds; programs cannot set it.
    """

    device: int
    inode: int
    size_bytes: int
    written_ns: int
    changed_ns: int


def state_of(status: os.stat_result) -> FileState:
    """Return a file's state from its stat result."""
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def file_state(file: Path) -> FileState | None:
    """Return the state of a file, following links; None if it cannot be read."""
    try:
        return state_of(os.stat(file))
    except OSError:
        return None


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Raise an OSError in the context as a FailedPrecondition that names the attempted operation.

    Raises:
        FailedPrecondition: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise FailedPrecondition(f"{what}: {error.strerror or error}") from error


def is_visible(name: str) -> bool:
    """Return whether a name has no leading dot, unlike ``.DS_Store`` and ``._model.onnx`` of macOS."""
    return name[0] != "."


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory, or a link to one; False if unknown, as for a circular link."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def visible_files(directory: Path) -> list[Path]:
    """Return all files below a directory, sorted, without dot files and files in dot directories."""
    files = (one for one in directory.rglob("*") if one.is_file())
    return sorted(one for one in files if all(map(is_visible, one.relative_to(directory).parts)))


def open_file(file: Path) -> io.FileIO:
    """Open an ordinary file for reading, unbuffered and without ever blocking.

    Raises:
        OSError: The file is missing, unreadable, or not an ordinary file.
    """
    try:
        _check_ordinary(os.stat(file))  # before opening: opening a device may have side effects
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # the name contains a NUL
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        _check_ordinary(os.fstat(descriptor))
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(file: Path, most_bytes: int) -> bytes:
    """Read a whole ordinary file.

    Args:
        file: The file.
        most_bytes: Maximum size; larger files are refused.

    Raises:
        OSError: The file is missing, unreadable, not an ordinary file, or too large.
    """
    with open_file(file) as opened:
        return _read(opened, most_bytes)


def read_text(file: Path, most_bytes: int, *, ordinary: bool = True) -> str:
    """Read a whole UTF-8 text file.

    Args:
        file: The file.
        most_bytes: Maximum size; larger files are refused.
        ordinary: Whether only an ordinary file is accepted. A file named by a person may also be a pipe.

    Raises:
        OSError: The file is missing, unreadable, too large, or not UTF-8.
    """
    try:
        with open_file(file) if ordinary else open(file, "rb", buffering=0) as opened:
            return _read(opened, most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:  # the name contains a NUL
        raise OSError(errno.EINVAL, str(error)) from error


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
        raise OSError(errno.EFBIG, f"larger than the {most_bytes} bytes allowed")
    return bytes(content)


@contextmanager
def whole_file(file: Path, *, synced: bool = True) -> Iterator[BinaryIO]:
    """Write a file that is renamed to its final name when complete, and removed if writing fails.

    Drafts of this file left by killed writers are removed first.

    Args:
        file: The final name; an existing file is replaced.
        synced: Whether to sync the file to disk, so that it survives a power cut.

    Raises:
        OSError: The file cannot be written.
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
    """Write a file's content with ``whole_file``, readable for all who may read its directory.

    Raises:
        OSError: The file cannot be written.
    """
    with whole_file(file) as opened:
        let_read(opened.fileno(), file.parent)
        opened.write(content)


def let_read(descriptor: int, directory: Path) -> None:
    """Give a file the read permissions of its directory, and remove others' write permission.

    Raises:
        OSError: The directory does not exist.
    """
    wanted = os.stat(directory).st_mode & (stat.S_IRGRP | stat.S_IROTH)
    has = stat.S_IMODE(os.fstat(descriptor).st_mode)
    wanted = (has | wanted) & ~stat.S_IWOTH
    if wanted != has:
        with suppress(OSError):  # another user owns it, or the file system has no permissions
            os.fchmod(descriptor, wanted)


@contextmanager
def draft_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a directory to be filled and then renamed; on exit, remove it if it was not renamed.

    It is locked while its writer lives, so that ``is_abandoned`` can recognise the drafts of killed
    processes.

    Args:
        parent: The parent directory.
        prefix: Prefix of the draft's name.

    Raises:
        OSError: The directory cannot be created.
    """
    draft = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = -1
    try:
        draft.mkdir()
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # this file system has no locks, as NFS for directories: see `is_abandoned`
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def is_abandoned(draft: Path) -> bool:
    """Return whether the writer of a draft, a directory or file, has ended.

    A writer locks its draft right after creating it, so an unlocked draft is abandoned after a minute. On
    file systems without such locks, a draft is abandoned if nothing in it has changed for an hour.
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
    except OSError:  # removed, or being written
        return False


def _last_change(draft: Path) -> float:
    changes = [os.stat(draft).st_mtime]
    for folder, _, files in os.walk(draft):
        changes += [os.stat(os.path.join(folder, name)).st_mtime for name in (".", *files)]
    return max(changes)


def sync_tree(directory: Path) -> None:
    """Sync a directory's files and the names in it to disk, so that they survive a power cut.

    Raises:
        OSError: They cannot be written to disk.
    """
    for folder, _, files in os.walk(directory):
        for name in files:
            with open_file(Path(folder, name)) as opened:
                os.fsync(opened.fileno())
        sync_directory(Path(folder))


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to disk, so that they survive a power cut.

    Raises:
        OSError: They cannot be written to disk.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
