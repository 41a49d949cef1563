"""One LMDB environment, shared by threads and processes: reads never block, writes have a timeout.

LMDB's own write lock has no timeout. If a process is suspended while it writes, all other writers hang. So
writers take the locks of this module first, which raise ``Unavailable`` on timeout; LMDB's lock is then free.
There are two lock files. The writer holds ``write.lock``, and the next writer holds ``next.lock``, so that a
process that writes repeatedly leaves room for others. The system releases both when a process ends, however
it ends.

Reads wait for no process, suspended or not. Only a process's first reader takes a slot in the shared reader
table, which LMDB guards with a lock. The module py-lmdb keeps one slot per process for reuse, so threads read
one after another, unless a read takes long. They would not be faster in parallel (measured), because of the
GIL. A store keeps everything in the unnamed database, as opening named ones requires a write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, HeadraceError, Unavailable, needs_extra

if TYPE_CHECKING:
    import lmdb

Transaction = Any
"""A py-lmdb transaction, typed as Any: py-lmdb's types allow memoryviews, which are not used here."""

_MOST_READERS = 2048
_DATA, _READERS, _NEXT, _WRITE = "data.mdb", "lock.mdb", "next.lock", "write.lock"
_READER_BYTES = 64  # size of a slot in LMDB's reader table
_BLOCK_BYTES = 512  # unit of st_blocks
CONTENTS_KEY = b"format"
"""Key of the entry that identifies a file's contents; present in every file."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0001, 0.004
# Longest wait for another thread's read, whose pages may have to come from disk.
_ALONE_SECONDS = 0.005
_ROOM_BYTES = 16 * 2**20
# Interval for freeing the slots of killed readers, which keep pages from being reused.
_READERS_CHECKED_SECONDS = 10.0

_opened: dict[tuple[int, int], LmdbFile] = {}
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """Options for opening an environment.

    Attributes:
        path: The directory; created if missing.
        largest_bytes: Maximum size of the contents. The file may be larger by an eighth and some MB, because
            deleting also needs free pages.
        sync: Whether writes are synced to disk, so that they survive a power cut.
        contents: Kind and version of the contents, such as ``headrace store 1``; other files are refused.
        tables: Maximum number of named tables.
    """

    path: Path
    largest_bytes: int
    sync: bool
    contents: str
    tables: int = 0


class NoRoom(Unavailable):
    """The file has reached its maximum size, or the disk is full; operations that add less may succeed."""


class LmdbFile:
    """An environment, opened once per process and shared by all its users."""

    def __init__(self, options: LmdbOptions, environment: lmdb.Environment, locks: _Locks) -> None:
        """Wrap the environment and locks that ``open_lmdb`` has opened."""
        self.options = options
        self.holders = 0
        self._environment = environment
        self._locks = locks
        self._reads = threading.Lock()
        self._readers_checked = 0.0

    @property
    def environment(self) -> lmdb.Environment:
        """LMDB's environment, for its statistics and for opening tables within ``writing``."""
        return self._environment

    @property
    def data(self) -> Path:
        """Path of the data file."""
        return self.options.path / _DATA

    def reading(self) -> _Reading:
        """Return a context manager for a read transaction on the newest snapshot; keep it short.

        Raises:
            Unavailable: There are too many readers, or the file is damaged.
        """
        return _Reading(self._environment, self._reads)

    @contextmanager
    def writing(self, deadline: float, more_bytes: int = 0) -> Iterator[Transaction]:
        """Run a write transaction, committed at the end and aborted on an exception.

        Args:
            deadline: Deadline on the monotonic clock for taking the write lock.
            more_bytes: Bytes by which the contents may grow; 0 for writes that must also work in a full file.

        Raises:
            Unavailable: Taking the write lock timed out, or the file or the disk is full.
        """
        import lmdb  # noqa: PLC0415 - an extra

        with self._locks.held(deadline):
            try:
                self._check_readers()
                with self._environment.begin(write=True) as transaction:
                    if more_bytes:
                        self._check_room(transaction, more_bytes)
                    yield transaction
            except lmdb.Error as error:
                raise refused(error) from error

    def _check_room(self, transaction: Transaction, more_bytes: int) -> None:
        stat = transaction.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        if pages * stat["psize"] + more_bytes > self.options.largest_bytes:
            raise NoRoom(
                f"the LMDB file is full: it holds {pages * stat['psize']} bytes and needs {more_bytes} more; "
                f"raise largest_bytes ({self.options.largest_bytes}), or remove data"
            )

    def _check_readers(self) -> None:
        now = time.monotonic()
        if now - self._readers_checked > _READERS_CHECKED_SECONDS:
            self._readers_checked = now
            self._environment.reader_check()

    def close(self) -> None:
        """Release the file, and close it if nobody else in this process uses it."""
        with _opening:
            self.holders -= 1
            if not self.holders:
                for key in [key for key, opened in _opened.items() if opened is self]:
                    del _opened[key]
                self._environment.close()
                self._locks.close()


class _Reading:
    """A read transaction that translates LMDB's errors into headrace's."""

    __slots__ = ("_environment", "_holds_lock", "_reads", "_transaction")

    def __init__(self, environment: lmdb.Environment, reads: threading.Lock) -> None:
        self._environment = environment
        self._reads = reads

    def __enter__(self) -> Transaction:
        self._holds_lock = self._reads.acquire(timeout=_ALONE_SECONDS)
        try:
            self._transaction = self._environment.begin()
        except BaseException as error:
            self._release()
            raise _translated(error) from error
        return self._transaction

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transaction.abort()
        del self._transaction  # only this frees the reader slot for the next one
        self._release()
        if error is not None and (told := _translated(error)) is not error:
            raise told from error

    def _release(self) -> None:
        if self._holds_lock:
            self._reads.release()


def _translated(error: BaseException) -> BaseException:
    import lmdb  # noqa: PLC0415 - an extra

    return refused(error) if isinstance(error, lmdb.Error) else error


def refused(error: lmdb.Error) -> Unavailable:
    """Return the headrace error for an LMDB error."""
    import lmdb  # noqa: PLC0415 - an extra

    if isinstance(error, lmdb.MapFullError):
        return NoRoom("the LMDB file is full: raise largest_bytes, or remove data")
    if isinstance(error, lmdb.MapResizedError):
        return Unavailable("another process has enlarged the LMDB file: open it with the same largest_bytes")
    if isinstance(error, lmdb.DiskError) or os.strerror(errno.ENOSPC) in str(error):
        return NoRoom(f"the disk under the LMDB file is full: {error}", told="the store is full")
    if os.strerror(errno.EIO) in str(error):  # LMDB also reports short writes this way
        said = f"the disk under the LMDB file is full, or fails: {error}"
        return NoRoom(said, told="the store is full, or fails")
    if isinstance(error, lmdb.ReadersFullError):
        return Unavailable(f"the LMDB file has {_MOST_READERS} readers already: {error}")
    if isinstance(error, lmdb.PanicError):
        return Unavailable(
            f"the LMDB file could not be written: {error}; reopen it to write again",
            told="the store could not be written",
        )
    return Unavailable(f"the LMDB file cannot be used: {error}", told="the store cannot be used")


def open_lmdb(options: LmdbOptions, timeout_seconds: float) -> LmdbFile:
    """Open an environment, or return the one that this process has open.

    Args:
        options: The environment and its options.
        timeout_seconds: Longest wait in seconds for other writers, if the file is created.

    Raises:
        ConfigError: The package lmdb is missing; the directory cannot be written; the file is damaged, of
            another kind or version, or open in this process with other options.
        Unavailable: The disk is full, or waiting for another writer timed out.
    """
    try:
        import lmdb  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise needs_extra("kind = lmdb", "archive", error) from error
    try:
        options.path.mkdir(parents=True, exist_ok=True)
        status = options.path.stat()
        options = replace(options, path=options.path.resolve())
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise ConfigError(f"{options.path}: cannot be created: {error}") from error
    key = (status.st_dev, status.st_ino)
    with _opening:
        opened = _opened.get(key)
        if opened is None:
            try:
                opened = _open(options, time.monotonic() + timeout_seconds)
            except lmdb.Error as error:
                raise _not_opened(options.path, error) from error
            _opened[key] = opened
        elif opened.options != options:
            raise ConfigError(f"{options.path}: already open in this process, with other settings")
        opened.holders += 1
    return opened


def _open(options: LmdbOptions, deadline: float) -> LmdbFile:
    import lmdb  # noqa: PLC0415 - an extra

    locks = _Locks(options.path)
    try:
        _reserve_readers(options.path / _READERS)
        environment = lmdb.open(
            str(options.path),
            map_size=options.largest_bytes + options.largest_bytes // 8 + _ROOM_BYTES,
            max_readers=_MOST_READERS,
            max_dbs=options.tables,
            mode=0o664,
            readahead=False,  # keys are read in random order
            sync=options.sync,
        )
    except BaseException:
        locks.close()
        raise
    opened = LmdbFile(options, environment, locks)
    try:
        _check(opened, environment, deadline)
    except BaseException:
        environment.close()
        locks.close()
        raise
    return opened


def _reserve_readers(path: Path) -> None:
    """Allocate disk space for LMDB's reader table, which is shared memory backed by a file.

    Otherwise, a process that writes to it on a full disk would be killed by a signal. Does nothing if the
    system cannot allocate space. LMDB reports all other problems of the path.

    Raises:
        Unavailable: The disk is full.
    """
    wanted = (_MOST_READERS + 2) * _READER_BYTES
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        try:
            if os.fstat(descriptor).st_blocks * _BLOCK_BYTES < wanted:
                os.posix_fallocate(descriptor, 0, wanted)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoom(f"{path}: the disk under the LMDB file is full: {error.strerror}") from error


def _check(opened: LmdbFile, environment: lmdb.Environment, deadline: float) -> None:
    """Refuse a file with other contents, and a truncated one, which would crash the process when read."""
    options = opened.options
    wanted = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    has = (options.path / _DATA).stat().st_size
    if has < wanted:
        raise ConfigError(f"{options.path}: {_DATA} is damaged: it has {has} bytes of {wanted}; remove it")
    contents = options.contents.encode()
    found, is_empty = _contents(environment)
    if found is None and is_empty:
        with opened.writing(deadline) as transaction:
            transaction.put(CONTENTS_KEY, contents, overwrite=False)
        found, _ = _contents(environment)
    if found != contents:
        shown = "something else" if found is None else repr(found.decode(errors="replace"))
        raise ConfigError(
            f"{options.path}: expected a file of {options.contents!r}, got one of {shown}; use another path, "
            "or the release of headrace that wrote it"
        )


def _contents(environment: lmdb.Environment) -> tuple[bytes | None, bool]:
    with environment.begin() as transaction:
        return transaction.get(CONTENTS_KEY), transaction.stat()["entries"] == 0


def _not_opened(path: Path, error: lmdb.Error) -> HeadraceError:
    import lmdb  # noqa: PLC0415 - an extra

    if isinstance(error, lmdb.DiskError) or os.strerror(errno.ENOSPC) in str(error):
        return refused(error)
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.PageNotFoundError):
        return ConfigError(
            f"{path}: {_DATA} is not an LMDB file, or is damaged: {error}; remove it, or use another path"
        )
    if isinstance(error, lmdb.VersionMismatchError):
        return ConfigError(f"{path}: {_DATA} was written by another version of LMDB: {error}")
    return ConfigError(f"{path}: cannot be opened: {error}")


class _Locks:
    """The write lock, held by one thread of one process, and a lock held by the next in line."""

    def __init__(self, directory: Path) -> None:
        self._among_threads = threading.Lock()
        self._descriptors: list[int] = []
        try:
            for name in (_NEXT, _WRITE):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptors.append(os.open(directory / name, flags, 0o664))
        except OSError as error:
            self.close()
            raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from error

    @contextmanager
    def held(self, deadline: float) -> Iterator[None]:
        """Hold the write lock."""
        if not self._among_threads.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise _too_late()
        following, writing = self._descriptors
        try:
            _lock(following, deadline)
            try:
                _lock(writing, deadline)
            finally:
                fcntl.flock(following, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(writing, fcntl.LOCK_UN)
        finally:
            self._among_threads.release()

    def close(self) -> None:
        """Close the lock files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def _lock(descriptor: int, deadline: float) -> None:
    """Lock a file before the deadline, by polling with back-off: a blocking flock has no timeout."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _too_late() from None
        except OSError as error:
            raise Unavailable(f"the LMDB file cannot be locked: {error.strerror}") from error
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _too_late() -> Unavailable:
    return Unavailable("the LMDB file: timed out waiting for another writer; its process may be suspended")
