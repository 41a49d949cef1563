"""Persist a control record, changing it by compare-and-swap so that no decision is lost.

A store returns its content with a tag, and accepts new content only together with the current tag. So a
concurrent change is read, not overwritten. The only store is a file beside the versions. An object store with
conditional writes (an ETag, a generation) could be another.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.base.errors import ConfigError, Conflict, FailedPrecondition
from headrace.base.files import let_read, open_file, read_file, saying, write_file
from headrace.versions.control_record import LARGEST_RECORD_BYTES
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK

PATIENCE_SECONDS = 10.0
"""Timeout of a change while it waits for concurrent changes."""

_PAUSE_SECONDS = 0.005
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Stored(NamedTuple):
    """The content of a store.

    Attributes:
        content: The record; None for none.
        tag: A tag that changes with the content.
    """

    content: bytes | None
    tag: str


class RecordStore(Protocol):
    """Stores one control record."""

    def read(self) -> Stored:
        """Return the whole stored content.

        Raises:
            ConfigError: It cannot be read.
        """
        ...

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store new content if the content that was read is unchanged.

        Args:
            before: The content that was read.
            content: The new content.

        Returns:
            The content that is stored now.

        Raises:
            Conflict: The content has changed meanwhile; read it again.
            FailedPrecondition: It cannot be written; the old content remains.
        """
        ...

    def alone(self) -> AbstractContextManager[object]:
        """Prevent swaps by others in this context; a no-op in a store without locks, where ``swap`` decides.

        Raises:
            Conflict: Others held the lock for ``PATIENCE_SECONDS``.
        """
        ...


class NoLocks(FailedPrecondition):
    """The file system has no locks, so one of two concurrent changes could be lost."""


class FileStore:
    """Stores the record in a file: under a lock on a second file, a synced draft is renamed into place.

    Readers take no lock, and see either the old content or the new, never a part. A killed process leaves the
    old content, and the system releases its lock. An object of this class must not be shared between threads.
    """

    def __init__(self, model_directory: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            model_directory: The directory of the model's versions.
            patience_seconds: Timeout for the lock.
        """
        self._file = model_directory / CONTROL_FILE
        self._lock = model_directory / CONTROL_LOCK
        self._patience_seconds = patience_seconds
        self._is_alone = False

    def read(self) -> Stored:
        """Return the stored content; see ``RecordStore``."""
        try:
            content = self._content()
        except OSError as error:
            raise ConfigError(f"{CONTROL_FILE} cannot be read: {error.strerror or error}") from error
        return Stored(content, "" if content is None else hashlib.sha256(content).hexdigest())

    def _content(self) -> bytes | None:
        for is_last in (False, True):
            try:
                return read_file(self._file, LARGEST_RECORD_BYTES)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.ESTALE or is_last:  # NFS: the file was replaced while it was read
                    raise
        return None

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store new content if the content that was read is unchanged; see ``RecordStore``."""
        with self.alone(), saying(f"{CONTROL_FILE} cannot be changed"):
            if self.read().tag != before.tag:
                raise Conflict(f"{CONTROL_FILE} was changed by another process meanwhile; read it again")
            write_file(self._file, content)
        return Stored(content, hashlib.sha256(content).hexdigest())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent swaps by others in this context; see ``RecordStore``. Contexts may be nested.

        Raises:
            NoLocks: The file system has no locks.
            FailedPrecondition: The lock file cannot be created or locked.
        """
        if self._is_alone:
            yield
            return
        with saying(f"{CONTROL_LOCK}, the lock of {CONTROL_FILE}, cannot be opened"):
            descriptor = _open_lock(self._lock)
        try:
            self._wait_for(descriptor)
            self._is_alone = True
            yield
        finally:
            self._is_alone = False
            os.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Conflict(
                        f"other processes have been changing {CONTROL_FILE} for {self._patience_seconds:g} "
                        f"s; try again (`fuser {CONTROL_LOCK}` lists them)"
                    ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise FailedPrecondition(f"{CONTROL_LOCK} cannot be locked: {error.strerror}") from error
                raise NoLocks(
                    f"{CONTROL_FILE} cannot be changed, because its file system has no locks "
                    f"({error.strerror}); mount it with locks, or change the file on a machine where it has "
                    "them"
                ) from error
            time.sleep(_PAUSE_SECONDS)


def _open_lock(file: Path) -> int:
    """Open the lock file, creating it if it is missing; for writing where possible, as NFS requires."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:  # another user has created it
        descriptor = os.open(file, os.O_RDONLY | flags)
    try:
        open_file(file).close()  # refuses anything but a regular file, such as a pipe
        let_read(descriptor, file.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
