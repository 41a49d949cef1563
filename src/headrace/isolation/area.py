"""Memory that two processes share: a file in memory, mapped by both, which only grows."""

from __future__ import annotations

import fcntl
import mmap
import os

from headrace.errors import TooLarge

_PAGE = mmap.PAGESIZE
_LEAST_BYTES = 64 * 1024
_ALIGNED = 64


def aligned(offset: int) -> int:
    """The first offset from here on at which any kernel likes an array to begin."""
    return (offset + _ALIGNED - 1) & ~(_ALIGNED - 1)


class Area:
    """One process's view of it.

    Attributes:
        fd: The file; closed with this.
        size: How many bytes are mapped here.
        view: All of them. A new one when it has grown: who holds the old one keeps the old mapping.
    """

    __slots__ = ("_most_bytes", "fd", "size", "view")

    def __init__(self, fd: int, most_bytes: int) -> None:
        """Map nothing yet.

        Args:
            fd: A file in memory, from ``new_file``.
            most_bytes: How large it may become.
        """
        self.fd = fd
        self._most_bytes = most_bytes
        self.size = 0
        self.view = memoryview(b"")

    def grow(self, size: int) -> None:
        """Have room for this many bytes, by at least doubling: whoever writes calls it.

        Raises:
            TooLarge: It may not become that large.
        """
        if size <= self.size:
            return
        if size > self._most_bytes:
            raise TooLarge(
                f"a batch takes {size} bytes on its way to or from the model's process, and at most "
                f"isolation.shared_bytes = {self._most_bytes} are shared with it; send fewer rows at once, "
                "or raise it in the model's settings"
            )
        size = min(max(size, 2 * self.size, _LEAST_BYTES), self._most_bytes)
        size = -(-size // _PAGE) * _PAGE
        os.ftruncate(self.fd, size)
        self.see(size)

    def see(self, size: int) -> None:
        """Map what the other side has made it, if that is more: whoever reads calls it.

        Raises:
            ValueError: The file is not that large, or larger than it may be.
        """
        if size > self.size:
            if size > self._most_bytes + _PAGE:
                raise ValueError(f"an area of {size} bytes, where {self._most_bytes} are allowed")
            self.view = memoryview(mmap.mmap(self.fd, size))
            self.size = size

    def close(self) -> None:
        """Close the file; the memory goes when nobody views it any more."""
        self.view = memoryview(b"")
        os.close(self.fd)


def new_file(name: str) -> int:
    """A new file in memory that nobody can make shorter: what is mapped stays there.

    Args:
        name: What it is called in ``/proc``.

    Returns:
        Its descriptor.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd
