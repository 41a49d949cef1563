"""Memory shared by two processes: a memory file mapped by both, which only grows."""

from __future__ import annotations

import fcntl
import mmap
import os

from headrace.base.errors import TooLarge

_PAGE = mmap.PAGESIZE
_LEAST_BYTES = 64 * 1024
_ALIGNED = 64


def aligned(offset: int) -> int:
    """Return the next offset that is aligned for any kernel, a multiple of 64 bytes."""
    return (offset + _ALIGNED - 1) & ~(_ALIGNED - 1)


class Area:
    """One process's mapping of a shared memory file.

    Attributes:
        fd: Descriptor of the file; closed by ``close``.
        size: Number of bytes mapped in this process.
        view: The mapped bytes. Replaced when the area grows; an old view keeps the old mapping.
    """

    __slots__ = ("_most_bytes", "fd", "size", "view")

    def __init__(self, fd: int, most_bytes: int) -> None:
        """Create an area without mapping the file.

        Args:
            fd: Descriptor of a memory file from ``new_file``.
            most_bytes: Size limit of the file.
        """
        self.fd = fd
        self._most_bytes = most_bytes
        self.size = 0
        self.view = memoryview(b"")

    def grow(self, size: int) -> None:
        """Grow the file to at least this many bytes, doubling it up to the limit; called by the writer.

        Raises:
            TooLarge: The size exceeds the limit.
        """
        if size <= self.size:
            return
        if size > self._most_bytes:
            raise TooLarge(
                f"a batch takes {size} bytes of the memory shared with the model's process, and at most "
                f"isolation.shared_bytes = {self._most_bytes} are allowed; send fewer rows at once, "
                "or raise it in the model's settings"
            )
        size = min(max(size, 2 * self.size, _LEAST_BYTES), self._most_bytes)
        size = -(-size // _PAGE) * _PAGE
        os.ftruncate(self.fd, size)
        self.see(size)

    def see(self, size: int) -> None:
        """Map the file at the size set by the other side, if it has grown; called by the reader.

        Raises:
            ValueError: The file is smaller than that, or the size exceeds the limit.
        """
        if size > self.size:
            if size > self._most_bytes + _PAGE:
                raise ValueError(f"expected an area of at most {self._most_bytes} bytes, got {size}")
            self.view = memoryview(mmap.mmap(self.fd, size))
            self.size = size

    def close(self) -> None:
        """Close the file; the memory is freed when the last view is gone."""
        self.view = memoryview(b"")
        os.close(self.fd)


def new_file(name: str) -> int:
    """Create a memory file that is sealed against shrinking, so that mappings stay valid.

    Args:
        name: Name of the file in ``/proc``.

    Returns:
        The file descriptor.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd
