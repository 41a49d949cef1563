"""Sealed copies: bytes in memory that cannot change, whatever happens to their source file.

A mapped file can be truncated or overwritten by anybody with write access. The mapping process then reads
other numbers, or gets a signal (SIGBUS) that native code cannot turn into an error. So headrace maps a copy
in a memfd. The kernel lets no process change its size or content, not even this one.

A process holds one copy of each content, identified by its SHA-256. A process that receives the descriptor
can map the copy, too: the seals guarantee that nothing will change. A keeper hands descriptors on
(``headrace.sealed_memory.keeper``).
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

from headrace.base import memory
from headrace.base.tensors import Array

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NEVER_RUN = 8  # MFD_NOEXEC_SEAL, which Python does not name yet; required on some systems (vm.memfd_noexec)
# The kernel refuses to seal while it holds a page itself (to move it, or to track its use). It waits for
# 0.15 s, which was too short on a busy machine. The timeout for a keeper is longer than this one.
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 5.0, 0.01

_lock = threading.Lock()
_by_checksum: weakref.WeakValueDictionary[str, SealedCopy] = weakref.WeakValueDictionary()
_still_to_copy = 0  # bytes that copies in progress will still take


class SealedCopy:
    """A sealed copy of some content; it lives as long as something refers to it or to an array of it.

    Attributes:
        descriptor: The memfd's descriptor; it may be passed to other processes, but not closed.
        size_bytes: Its size.
    """

    def __init__(self, descriptor: int, size_bytes: int, *held: int) -> None:
        """Wrap a sealed memfd; use ``sealed`` or ``received`` to create one.

        Args:
            descriptor: The memfd's descriptor; closed with this object.
            size_bytes: Its size.
            held: Descriptors to close after it.
        """
        self.descriptor, self.size_bytes = descriptor, size_bytes
        for one in (*held, descriptor):  # finalizers run in reverse order of registration
            weakref.finalize(self, os.close, one)

    @classmethod
    def sealed(
        cls, pieces: Iterable[memoryview], finish: Callable[[int], object] = lambda _: None
    ) -> SealedCopy:
        """Copy content and seal the copy.

        Args:
            pieces: The content, piece by piece.
            finish: Called with the descriptor after copying; may still change the copy.

        Raises:
            OSError: Memory or descriptors are exhausted, or the copy cannot be sealed.
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
        """Wrap a copy that another process has sealed.

        Args:
            descriptor: The memfd's descriptor; closed with the copy, or at once if it is refused.
            size_bytes: Its expected size.
            lifeline: While this descriptor is open, the other process keeps the copy; closed likewise.

        Raises:
            OSError: The copy lacks a seal, or has another size.
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
        """Map the copy as a private array: writes stay in this array.

        Raises:
            OSError: It cannot be mapped.
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
    """Owner of a mapping and its copy; arrays of the mapping keep both alive.

    The mapping is released first. The memory is then freed when the copy's own descriptor is closed, which
    happens without the GIL, so requests continue meanwhile.
    """

    def __init__(self, array: Array, copy: SealedCopy) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array: Array | None = array
        self._copy = copy

    def __del__(self) -> None:
        self._array = None


def shared(checksum: str) -> SealedCopy | None:
    """Return this process's copy of some content, if there is one.

    Args:
        checksum: The content's SHA-256, in hexadecimal digits.
    """
    with _lock:
        return _by_checksum.get(checksum)


def share(copy: SealedCopy, checksum: str) -> SealedCopy:
    """Share a copy under the SHA-256 of its content; return the first copy of that content."""
    with _lock:
        return _by_checksum.setdefault(checksum, copy)


@contextmanager
def room_for(size_bytes: int) -> Iterator[Room]:
    """Reserve memory for a copy, or refuse it: running out of memory would kill the process.

    The bytes that other copies in progress will still take count as used.

    Args:
        size_bytes: Size of the copy.

    Yields:
        The reservation, to be updated while copying.

    Raises:
        OSError: Less memory is available.
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
    """Memory reserved by a copy in progress.

    Attributes:
        left_bytes: Bytes not copied yet.
    """

    def __init__(self) -> None:
        """Start without a reservation."""
        self.left_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Reserve more bytes; the caller holds the lock."""
        global _still_to_copy  # noqa: PLW0603 - one per process, like its memory
        self.left_bytes += size_bytes
        _still_to_copy += size_bytes

    def copied(self, size_bytes: int) -> None:
        """Release bytes that have been copied: the system counts them from now on."""
        with _lock:
            self.take(-min(size_bytes, self.left_bytes))


def _is_sealed(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("headrace", flags | _NEVER_RUN)
    except OSError as error:
        if error.errno != errno.EINVAL:  # from kernels before 6.3
            raise
        return os.memfd_create("headrace", flags)
