"""Sealed copies: bytes in memory that nobody can change, whatever happens to the file they came from.

A file that is mapped can be cut short or written over by anybody who may write to it. The process that has
it mapped then gets other numbers, or a signal (SIGBUS) that native code cannot turn into an error. So what is
mapped here is a copy in a memfd whose size and content the kernel keeps from changing: for everybody, this
process included.

Copies of the same content, told by its SHA-256, are one in a process. Another process can map it, too, when
it is given the descriptor: the seals tell it that nothing will change. That is what a keeper does
(``headrace.sealed.keeper``).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from headrace import memory
from headrace.tensors import Array

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NEVER_RUN = 8  # MFD_NOEXEC_SEAL, which Python does not name yet; some systems ask for it (vm.memfd_noexec)
# The kernel refuses to seal while it has hold of a page for itself (to move it, or to see how it is used). It
# waits for 0.15 s; on a crowded machine that was too short. Who asks a keeper waits for longer than this.
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 5.0, 0.01

_lock = threading.Lock()
_by_checksum: weakref.WeakValueDictionary[str, SealedCopy] = weakref.WeakValueDictionary()
_still_to_copy = 0  # bytes that copies being made will take


class SealedCopy:
    """A copy of some content, sealed; it lives as long as something refers to it or to an array of it.

    Attributes:
        descriptor: Of the memfd: may be passed to other processes, and must not be closed.
        size_bytes: How large it is.
    """

    def __init__(self, descriptor: int, size_bytes: int, *held: int) -> None:
        """Take what is sealed already; ``sealed`` and ``received`` make one.

        Args:
            descriptor: Of the memfd; closed with this object.
            size_bytes: How large it is.
            held: Descriptors that are closed after it.
        """
        self.descriptor, self.size_bytes = descriptor, size_bytes
        for one in (*held, descriptor):  # the last one that is registered is the first one to be called
            weakref.finalize(self, os.close, one)

    @classmethod
    def sealed(
        cls, pieces: Iterable[memoryview], finish: Callable[[int], object] = lambda _: None
    ) -> SealedCopy:
        """Copy and seal.

        Args:
            pieces: The content, piece by piece.
            finish: Gets the descriptor when all is copied, and may change it still.

        Raises:
            OSError: There is no memory for it, no descriptor, or something keeps it from being sealed.
        """
        descriptor, size = _memfd(), 0
        try:
            for piece in pieces:
                done = 0
                while done < len(piece):
                    done += os.write(descriptor, piece[done:])
                size += done
            finish(descriptor)
            _seal(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, size)

    @classmethod
    def received(cls, descriptor: int, size_bytes: int, lifeline: int) -> SealedCopy:
        """Take what another process has sealed.

        Args:
            descriptor: Of the memfd; closed with the copy, or at once if it is refused.
            size_bytes: How large it must be.
            lifeline: What tells that process, as long as it is open, that the copy is held; closed likewise.

        Raises:
            OSError: It is not sealed for good, or has another size.
        """
        try:
            status = os.fstat(descriptor)
            is_sealed = stat.S_ISREG(status.st_mode) and _is_sealed(descriptor)
            if not is_sealed or status.st_size != size_bytes:
                raise OSError(errno.EPERM, f"expected a sealed copy of {size_bytes} bytes")
        except BaseException:
            os.close(descriptor)
            os.close(lifeline)
            raise
        return cls(descriptor, size_bytes, lifeline)

    def array(self, dtype: np.dtype[np.generic], shape: tuple[int, ...], offset: int) -> Array:
        """Map it as an array, privately: what is written to the array stays this array's own.

        Raises:
            OSError: There is no room for another mapping.
        """
        mapped = mmap.mmap(self.descriptor, self.size_bytes, flags=mmap.MAP_PRIVATE)
        return np.asarray(_Mapped(np.ndarray(shape, dtype, mapped, offset), self))


def _seal(descriptor: int) -> None:
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(_BUSY_PAUSE_SECONDS)
        else:
            return


class _Mapped:
    """What keeps a mapping, and the copy that it is of, as long as there are arrays of it.

    The mapping goes first. So the memory is freed when the copy's own descriptor is closed, which is done
    without the interpreter's lock: requests go on beside it.
    """

    def __init__(self, array: Array, copy: SealedCopy) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array: Array | None = array
        self._copy = copy

    def __del__(self) -> None:
        self._array = None


def shared(checksum: str) -> SealedCopy | None:
    """The copy of some content, if there is one in this process.

    Args:
        checksum: The content's SHA-256, in hexadecimal digits.
    """
    with _lock:
        return _by_checksum.get(checksum)


def share(copy: SealedCopy, checksum: str) -> SealedCopy:
    """Let others have a copy by the SHA-256 of its content; the first of equal ones is everybody's."""
    with _lock:
        return _by_checksum.setdefault(checksum, copy)


@contextmanager
def room_for(size_bytes: int) -> Iterator[Room]:
    """Refuse to copy what does not fit into memory: running out of it would end the process.

    What other copies that are being made will take counts as taken.

    Args:
        size_bytes: How much will be copied.

    Yields:
        What is to be told as it is copied.

    Raises:
        OSError: There is less memory available.
    """
    available = memory.available_bytes()
    room = Room()
    with _lock:
        if available is not None and size_bytes + _still_to_copy > available:
            raise OSError(
                errno.ENOMEM,
                f"it takes {size_bytes} bytes of memory, and only "
                f"{max(0, available - _still_to_copy)} are available",
            )
        room.take(size_bytes)
    try:
        yield room
    finally:
        with _lock:
            room.take(-room.left_bytes)


class Room:
    """Memory that a copy being made has not taken yet.

    Attributes:
        left_bytes: How much that is.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.left_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count so much more as still to be copied; the caller holds the lock."""
        global _still_to_copy  # noqa: PLW0603 - the process's, like its memory
        self.left_bytes += size_bytes
        _still_to_copy += size_bytes

    def copied(self, size_bytes: int) -> None:
        """So much has been copied: the system counts it from now on."""
        with _lock:
            self.take(-min(size_bytes, self.left_bytes))


def _is_sealed(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("headrace", flags | _NEVER_RUN)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which kernels before 6.3 say
            raise
        return os.memfd_create("headrace", flags)
