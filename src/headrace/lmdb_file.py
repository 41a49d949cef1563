"""One LMDB environment, shared by threads and processes: reads wait for nobody, writes wait in time.

LMDB's own write lock has no timeout: behind a process that was stopped while it wrote, all others would wait
for ever. So whoever writes takes a lock of this module first, which ends with ``Unavailable`` when its time
is over; LMDB's is then free. Two files make it: who waits longest holds ``next.lock``, so that a process
that writes again and again leaves room for others, and who writes holds ``write.lock``. The system lets go
of both when a process ends, however it does.

Reads wait for no process, stopped or not. Only a process's first reader takes a place in a table that all
share, for which LMDB has a lock; py-lmdb keeps one such place, so the threads of a process read one after the
other, unless one takes long: they would not be faster side by side (measured; Python's own lock is between
them). Everything is in the one unnamed database, as named ones need a write to be opened.
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

from headrace.errors import ConfigError, HeadraceError, Unavailable

if TYPE_CHECKING:
    import lmdb

Transaction = Any
"""py-lmdb's; its own types say of every key and value that it may be a memoryview, which none is here."""

_MOST_READERS = 2048
_DATA, _READERS, _NEXT, _WRITE = "data.mdb", "lock.mdb", "next.lock", "write.lock"
_READER_BYTES = 64  # a reader's place in LMDB's table
_BLOCK_BYTES = 512  # of what the system says that a file takes
CONTENTS_KEY = b"format"
"""The key by which a file says what it holds; in every file."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0001, 0.004
# A read that takes longer (its pages come from a disk) is not waited for by others.
_ALONE_SECONDS = 0.005
_ROOM_BYTES = 16 * 2**20
# Readers that were killed keep pages from being used again until somebody looks.
_READERS_CHECKED_SECONDS = 10.0

_opened: dict[tuple[int, int], LmdbFile] = {}
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """How an environment is opened.

    Attributes:
        path: Its directory; made if it is not there.
        largest_bytes: How much it may hold. The file may be larger by an eighth and some MB: removing needs
            room, too, and LMDB cannot even do that in a map without any.
        sync: Whether what is written survives a loss of power.
        contents: What the file holds, and in which version, as in ``headrace store 1``; another is refused.
        tables: How many named tables it may have.
    """

    path: Path
    largest_bytes: int
    sync: bool
    contents: str
    tables: int = 0


class NoRoom(Unavailable):
    """The file has its largest size, or the disk is full; less may still be done."""


class LmdbFile:
    """An environment, opened once in a process however many ask for it."""

    def __init__(self, options: LmdbOptions, environment: lmdb.Environment, locks: _Locks) -> None:
        """Take over what ``open_lmdb`` has opened."""
        self.options = options
        self.holders = 0
        self._environment = environment
        self._locks = locks
        self._reads = threading.Lock()
        self._readers_checked = 0.0

    @property
    def environment(self) -> lmdb.Environment:
        """LMDB's own; for what it says of itself, and for opening tables within ``writing``."""
        return self._environment

    @property
    def data(self) -> Path:
        """The file itself."""
        return self.options.path / _DATA

    def reading(self) -> _Reading:
        """A read transaction, for ``with``; of the newest state, and to be short.

        Raises:
            Unavailable: There are too many readers, or the file is damaged.
        """
        return _Reading(self._environment, self._reads)

    @contextmanager
    def writing(self, deadline: float, more_bytes: int = 0) -> Iterator[Transaction]:
        """A write transaction; committed at the end, aborted by an error.

        Args:
            deadline: Until when to wait for those who write now, on the monotonic clock.
            more_bytes: By how much it may grow; 0 for what shall be done in a full file, too.

        Raises:
            Unavailable: Somebody else wrote for as long; the file or the disk is full.
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
                f"the LMDB file is full: it holds {pages * stat['psize']} bytes and was to get {more_bytes} "
                f"more; raise largest_bytes ({self.options.largest_bytes}), or drop what is not needed"
            )

    def _check_readers(self) -> None:
        now = time.monotonic()
        if now - self._readers_checked > _READERS_CHECKED_SECONDS:
            self._readers_checked = now
            self._environment.reader_check()

    def close(self) -> None:
        """Let go of the file, if nobody else in this process holds it."""
        with _opening:
            self.holders -= 1
            if not self.holders:
                for key in [key for key, opened in _opened.items() if opened is self]:
                    del _opened[key]
                self._environment.close()
                self._locks.close()


class _Reading:
    """One read: LMDB's transaction, and its errors in the words of whoever uses the store."""

    __slots__ = ("_alone", "_environment", "_is_alone", "_transaction")

    def __init__(self, environment: lmdb.Environment, alone: threading.Lock) -> None:
        self._environment = environment
        self._alone = alone

    def __enter__(self) -> Transaction:
        self._is_alone = self._alone.acquire(timeout=_ALONE_SECONDS)
        try:
            self._transaction = self._environment.begin()
        except BaseException as error:
            self._release()
            raise _told(error) from error
        return self._transaction

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transaction.abort()
        del self._transaction  # only then its place is free for the next one
        self._release()
        if error is not None and (told := _told(error)) is not error:
            raise told from error

    def _release(self) -> None:
        if self._is_alone:
            self._alone.release()


def _told(error: BaseException) -> BaseException:
    import lmdb  # noqa: PLC0415 - an extra

    return refused(error) if isinstance(error, lmdb.Error) else error


def refused(error: lmdb.Error) -> Unavailable:
    """What LMDB refuses, in the words of whoever uses the store."""
    import lmdb  # noqa: PLC0415 - an extra

    if isinstance(error, lmdb.MapFullError):
        return NoRoom("the LMDB file is full: raise largest_bytes, or drop what is not needed")
    if isinstance(error, lmdb.MapResizedError):
        return Unavailable("another process has made the LMDB file larger: open it with its largest_bytes")
    if isinstance(error, lmdb.DiskError) or os.strerror(errno.ENOSPC) in str(error):
        return NoRoom(f"the disk under the LMDB file is full: {error}", told="the store is full")
    if os.strerror(errno.EIO) in str(error):  # what LMDB says of a write that came short, too
        said = f"the disk under the LMDB file is full, or fails: {error}"
        return NoRoom(said, told="the store is full, or fails")
    if isinstance(error, lmdb.ReadersFullError):
        return Unavailable(f"the LMDB file has {_MOST_READERS} readers already: {error}")
    if isinstance(error, lmdb.PanicError):
        return Unavailable(
            f"the LMDB file could not be written: {error}; it works again when it is opened anew",
            told="the store could not be written",
        )
    return Unavailable(f"the LMDB file cannot be used: {error}", told="the store cannot be used")


def open_lmdb(options: LmdbOptions, timeout_seconds: float) -> LmdbFile:
    """Open an environment, or give the one that this process has open.

    Args:
        options: Which and how.
        timeout_seconds: How long to wait for others, where it is made.

    Raises:
        ConfigError: The package lmdb is missing; the directory cannot be written; the file is damaged, of
            another kind or version, or open in this process in another way.
        Unavailable: The disk is full, or somebody else wrote all the while.
    """
    try:
        import lmdb  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("kind = lmdb needs an extra: pip install 'headrace[archive]'") from None
    try:
        options.path.mkdir(parents=True, exist_ok=True)
        status = options.path.stat()
        options = replace(options, path=options.path.resolve())
    except (OSError, ValueError) as error:  # a name with a NUL in it
        raise ConfigError(f"{options.path}: cannot be made: {error}") from error
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
            raise ConfigError(f"{options.path}: open in this process already, with other settings")
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
            readahead=False,  # reads are of keys here and there
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
    """Have the disk keep room for LMDB's table of readers, which is memory that they share.

    On a full disk, the first who writes to it would be killed by the system. Where the system cannot keep
    room, and for all else that is wrong with the path, LMDB says what it says.

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
    """Refuse a file that is cut, which could not be read without the process's end, or of something else."""
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
            f"{path}: {_DATA} is no LMDB file, or damaged: {error}; remove it, or use another path"
        )
    if isinstance(error, lmdb.VersionMismatchError):
        return ConfigError(f"{path}: {_DATA} is of another version of LMDB: {error}")
    return ConfigError(f"{path}: cannot be opened: {error}")


class _Locks:
    """Who may write: one thread of one process at a time, and whoever waits longest is next."""

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
        """Be the one who writes."""
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
        """Close the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def _lock(descriptor: int, deadline: float) -> None:
    """Lock a file in time: the system's own waiting has no end, so it is asked again and again."""
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
            raise Unavailable(f"the LMDB file's lock cannot be had: {error.strerror}") from error
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _too_late() -> Unavailable:
    return Unavailable("the LMDB file: another writer did not end in time; is its process stopped?")
