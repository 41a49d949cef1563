"""Where a control record is kept, and how it changes: by compare-and-swap, so that no decision is lost.

A store gives what it holds with a tag, and takes something new only from who knows the tag of what it holds:
what somebody else has decided meanwhile is read, not overwritten. The one store is a file beside the
versions. An object store that puts on condition (an ETag, a generation) can be another.
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

from headrace.disk import let_read, open_file, read_file, saying, write_file
from headrace.errors import ConfigError, Conflict, FailedPrecondition
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK
from headrace.versions.record import LARGEST_RECORD_BYTES

PATIENCE_SECONDS = 10.0
"""How long a change waits for those that come before it."""

_PAUSE_SECONDS = 0.005
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Stored(NamedTuple):
    """What a store holds.

    Attributes:
        content: The record; None for none.
        tag: What is another whenever the content is.
    """

    content: bytes | None
    tag: str


class RecordStore(Protocol):
    """Keeps one control record."""

    def read(self) -> Stored:
        """What is stored now, whole.

        Raises:
            ConfigError: It cannot be read.
        """
        ...

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store something new in place of what was read, if that is there still.

        Args:
            before: What was read.
            content: What shall be there from now on.

        Returns:
            What is stored now.

        Raises:
            Conflict: Somebody else has changed it meanwhile; read it again.
            FailedPrecondition: It cannot be written; what was there is there still.
        """
        ...

    def alone(self) -> AbstractContextManager[object]:
        """While this lasts, nobody else swaps. A store without locks gives nothing: there ``swap`` decides.

        Raises:
            Conflict: Others were at it for ``PATIENCE_SECONDS``.
        """
        ...


class NoLocks(FailedPrecondition):
    """The file system has no locks, so that two changes at a time could lose one."""


class FileStore:
    """Keeps the record in a file: a lock on a second one, a draft that is synced, and a name at the end.

    Whoever reads takes no lock, and sees what was there or what came, never a part. A process that is killed
    leaves what was there, and the system takes its lock away. One thread at a time may use an object of this.
    """

    def __init__(self, model_directory: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Get ready; nothing is read or written yet.

        Args:
            model_directory: Where the model's versions are.
            patience_seconds: How long a change waits for others.
        """
        self._file = model_directory / CONTROL_FILE
        self._lock = model_directory / CONTROL_LOCK
        self._patience_seconds = patience_seconds
        self._is_alone = False

    def read(self) -> Stored:
        """What is stored now; see ``RecordStore``."""
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
                if error.errno != errno.ESTALE or is_last:  # NFS: it was replaced while it was read
                    raise
        return None

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store something new if what was read is there still; see ``RecordStore``."""
        with self.alone(), saying(f"{CONTROL_FILE} cannot be changed"):
            if self.read().tag != before.tag:
                raise Conflict(f"{CONTROL_FILE} has been changed by somebody else meanwhile; read it again")
            write_file(self._file, content)
        return Stored(content, hashlib.sha256(content).hexdigest())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts, nobody else swaps; see ``RecordStore``. It may be asked for within itself.

        Raises:
            NoLocks: The file system has none.
            FailedPrecondition: The file to be locked cannot be made.
        """
        if self._is_alone:
            yield
            return
        with saying(f"{CONTROL_LOCK}, which changes of {CONTROL_FILE} are made under, cannot be opened"):
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
                        f"others have been changing {CONTROL_FILE} for {self._patience_seconds:g} s; try "
                        f"again (`fuser {CONTROL_LOCK}` says who)"
                    ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise FailedPrecondition(f"{CONTROL_LOCK} cannot be locked: {error.strerror}") from error
                raise NoLocks(
                    f"{CONTROL_FILE} cannot be changed, because its file system has no locks "
                    f"({error.strerror}); mount it with them, or change it where it has them"
                ) from error
            time.sleep(_PAUSE_SECONDS)


def _open_lock(file: Path) -> int:
    """Open the file to be locked, made if it is missing; for writing where that may be: NFS wants it so."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:  # somebody else has made it
        descriptor = os.open(file, os.O_RDONLY | flags)
    try:
        open_file(file).close()  # an ordinary file, and no pipe that somebody has put there
        let_read(descriptor, file.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
