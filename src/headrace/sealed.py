"""Sealed copies: bytes in memory that nobody can change, whatever happens to the file they came from.

A file that is mapped can be cut short or written over by anybody who may write to it. The process that has
it mapped then gets other numbers, or a signal (SIGBUS) that native code cannot turn into an error. So what is
mapped here is a copy in a memfd whose size and content the kernel keeps from changing: for everybody, this
process included.

Copies of the same content, told by its SHA-256, are one in a process. Another process can map it, too, when
it is given the descriptor: the seals tell it that nothing will change, and the checksum what it is.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterable

import numpy as np

from headrace import memory
from headrace.tensors import Array

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NEVER_RUN = 8  # MFD_NOEXEC_SEAL, which Python does not name yet; some systems ask for it (vm.memfd_noexec)

_lock = threading.Lock()
_by_checksum: weakref.WeakValueDictionary[str, SealedCopy] = weakref.WeakValueDictionary()


class SealedCopy:
    """A copy of some content, sealed; it lives as long as something refers to it or to an array of it.

    Attributes:
        descriptor: Of the memfd: may be passed to other processes, and must not be closed.
        size_bytes: How large it is.
    """

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        """Copy and seal.

        Args:
            pieces: The content, piece by piece.

        Raises:
            OSError: There is no memory for it, or no descriptor.
        """
        self.descriptor = _memfd()
        weakref.finalize(self, os.close, self.descriptor)
        self.size_bytes = 0
        for piece in pieces:
            done = 0
            while done < len(piece):
                done += os.write(self.descriptor, piece[done:])
            self.size_bytes += done
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def array(self, dtype: np.dtype[np.generic], shape: tuple[int, ...], offset: int) -> Array:
        """Map it as an array, privately: what is written to the array stays this array's own.

        Raises:
            OSError: There is no room for another mapping.
        """
        mapped = mmap.mmap(self.descriptor, self.size_bytes, flags=mmap.MAP_PRIVATE)
        return np.asarray(_Mapped(np.ndarray(shape, dtype, mapped, offset), self))


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


def check_room(size_bytes: int) -> None:
    """Refuse to copy what does not fit into memory: running out of it would end the process.

    Raises:
        OSError: There is less memory available.
    """
    available = memory.available_bytes()
    if available is not None and size_bytes > available:
        raise OSError(
            errno.ENOMEM, f"it takes {size_bytes} bytes of memory, and only {available} are available"
        )


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("headrace", flags | _NEVER_RUN)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which kernels before 6.3 say
            raise
        return os.memfd_create("headrace", flags)
