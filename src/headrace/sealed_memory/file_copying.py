"""Copy a file, compute its checksum and check its numbers in one pass.

The bytes that are checked are the bytes that are copied. A process with a keeper (``use_keeper``) asks it for
the copy, which the keeper makes once for all processes. If no keeper is available, the copy is made here.
"""

from __future__ import annotations

import errno
import hashlib
import io
import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from headrace.base.tensors import Array
from headrace.sealed_memory import copies
from headrace.sealed_memory.copies import SealedCopy

if TYPE_CHECKING:
    from headrace.sealed_memory.keeper_client import KeeperClient

PIECE_BYTES = 2**18
"""Bytes that are copied, hashed and checked at a time; they fit into a core's cache."""

LARGE_BYTES = 2**20
"""Each process reads smaller files itself."""

_OWN_SHARE = 0.1
_INDEX = np.dtype(np.uint32)

_keeper: KeeperClient | None = None


class Numbers(msgspec.Struct, frozen=True):
    """Floating-point numbers that must all be finite: from an offset in a file to its end.

    Attributes:
        dtype: Their NumPy dtype, as a string.
        offset: Start in the file, in bytes.
    """

    dtype: str
    offset: int


class Patch(msgspec.Struct, frozen=True):
    """Rows to be replaced in the copy of an array's file.

    Attributes:
        checksum: The SHA-256 of the row numbers (uint32) followed by the values.
        count: Number of rows.
        row_bytes: Size of one row.
        offset: Start of the array in the file, in bytes; it extends to the file's end.
    """

    checksum: str
    count: int
    row_bytes: int
    offset: int


class Content(msgspec.Struct, frozen=True):
    """The expected content of a file.

    Attributes:
        size_bytes: Its size.
        checksum: Its SHA-256, in hexadecimal digits; None for any.
        finite: The numbers that must be finite; None for none.
        patch: The rows to replace after the check; None for none.
    """

    size_bytes: int
    checksum: str | None = None
    finite: Numbers | None = None
    patch: Patch | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """The reason why a file was not copied.

    Attributes:
        reason: The file changed meanwhile, has another checksum or a number that is not finite, or a system
            call failed.
        place: Index of the number that is not finite.
        number: That number.
        errno: The system's error number.
        said: The system's error message.
    """

    reason: Literal["changed", "checksum", "number", "system"]
    place: int = 0
    number: float = 0.0
    errno: int = 0
    said: str = ""


class NotCopied(Exception):
    """A file was not copied.

    Attributes:
        refusal: The reason.
    """

    def __init__(self, refusal: Refusal) -> None:
        """Store the reason."""
        super().__init__(refusal.reason)
        self.refusal = refusal


def use_keeper(descriptor: int) -> None:
    """Ask a keeper for copies from now on.

    Args:
        descriptor: The client end of the keeper's socket; it is duplicated, so the caller may close it.
    """
    global _keeper  # noqa: PLW0603 - one per process, like the descriptor
    from headrace.sealed_memory.keeper_client import KeeperClient  # noqa: PLC0415 - only with a keeper

    _keeper = KeeperClient(descriptor)


def sealed_copy(file: io.FileIO, content: Content) -> SealedCopy:
    """Return a sealed copy of a file: an existing one of this process, the keeper's, or a new one.

    Args:
        file: The open file.
        content: Its expected content.

    Raises:
        NotCopied: The file has other content, or changed meanwhile.
        OSError: It cannot be read, or memory or descriptors are exhausted.
    """
    checksum = content.checksum
    found = copies.shared(checksum) if checksum else None
    if found is None and _keeper is not None:
        found = _keeper.copy(file.fileno(), content)
    if found is None:
        found = make_copy(file.fileno(), content)
    return copies.share(found, checksum) if checksum else found


def patched_copy(
    file: io.FileIO, content: Content, offset: int, rows: Array, values: Array
) -> SealedCopy | None:
    """Return a sealed copy of an array's file, with rows replaced by the keeper; equal requests share it.

    Args:
        file: The open file.
        content: Its expected content.
        offset: Start of the array in it, in bytes.
        rows: Numbers of the rows to replace.
        values: Their new values.

    Returns:
        The copy; None if the caller should replace the rows: they are on few pages, or no keeper is
        available.

    Raises:
        NotCopied: The file has other content, or changed meanwhile.
        OSError: It cannot be read, or memory or descriptors are exhausted.
    """
    if _keeper is None or not values.size:
        return None
    row_bytes = values.nbytes // len(rows)
    if not _are_on_many_pages(rows, row_bytes, content.size_bytes):
        return None
    parts = [np.ascontiguousarray(one).reshape(-1).view(np.uint8).data for one in (rows, values)]
    digest = hashlib.sha256(parts[0])
    digest.update(parts[1])
    patch = Patch(digest.hexdigest(), len(rows), row_bytes, offset)
    known = f"{content.checksum}+{patch.checksum}" if content.checksum else None
    found = copies.shared(known) if known else None
    if found is None:
        packed = SealedCopy.sealed(parts)
        wanted = msgspec.structs.replace(content, patch=patch)
        found = _keeper.copy(file.fileno(), wanted, packed.descriptor)
    return copies.share(found, known) if found is not None and known else found


def _are_on_many_pages(rows: Array, row_bytes: int, size_bytes: int) -> bool:
    """Return whether replacing rows privately would unshare more than ``_OWN_SHARE`` of an array's pages."""
    pages = len(np.unique(rows.astype(np.int64) * row_bytes // mmap.PAGESIZE))
    return pages * mmap.PAGESIZE > _OWN_SHARE * size_bytes


def kept_checksum(file: io.FileIO, size_bytes: int, between: Callable[[], object]) -> str | None:
    """Return a large file's SHA-256 in hexadecimal digits, computed by the keeper once for all processes.

    Args:
        file: The open file.
        size_bytes: Its size.
        between: Called about once a second while waiting; an exception from it ends the wait.

    Returns:
        The checksum; None if the caller should compute it: the file is small, or no keeper is available.

    Raises:
        NotCopied: The file changed meanwhile.
        OSError: It cannot be read.
    """
    if _keeper is None or size_bytes < LARGE_BYTES:
        return None
    return _keeper.checksum(file.fileno(), size_bytes, between)


def make_copy(
    descriptor: int,
    content: Content,
    between: Callable[[int], object] = lambda _: None,
    patch: int = -1,
) -> SealedCopy:
    """Copy a file and check it in the same pass.

    Args:
        descriptor: The file's descriptor; its position does not move.
        content: Its expected content.
        between: Called with the size of each copied piece; an exception from it ends the copying.
        patch: Descriptor of the row numbers and values that ``content.patch`` describes.

    Raises:
        NotCopied: The file has other content, or changed meanwhile.
        OSError: It cannot be read, or memory or descriptors are exhausted.
    """
    with copies.room_for(content.size_bytes) as room:

        def told() -> Iterator[memoryview]:
            for piece in pieces(descriptor, content):
                yield piece
                room.copied(len(piece))
                between(len(piece))

        if content.patch is None:
            return SealedCopy.sealed(told())
        return SealedCopy.sealed(told(), partial(_replace, content.size_bytes, content.patch, patch))


def _replace(size_bytes: int, patch: Patch, source: int, descriptor: int) -> None:
    """Write a patch's rows into a copy that is not sealed yet, and unmap it again."""
    size = patch.count * (_INDEX.itemsize + patch.row_bytes)
    array_bytes = size_bytes - patch.offset
    if os.fstat(source).st_size != size or min(size, array_bytes) <= 0 or array_bytes % patch.row_bytes:
        raise OSError(errno.EINVAL, "the patch does not have the expected size")
    with mmap.mmap(source, size, prot=mmap.PROT_READ) as given, mmap.mmap(descriptor, size_bytes) as whole:
        rows = np.frombuffer(given, _INDEX, patch.count)
        values = np.frombuffer(given, np.uint8, offset=rows.nbytes).reshape(patch.count, patch.row_bytes)
        table = np.frombuffer(whole, np.uint8, offset=patch.offset).reshape(-1, patch.row_bytes)
        is_within = bool(rows.max() < len(table))
        if is_within:
            table[rows] = values
        del rows, values, table
    if not is_within:
        raise OSError(errno.EINVAL, "the patch has rows beyond the end of the table")


def pieces(descriptor: int, content: Content) -> Iterator[memoryview]:
    """Yield a file's whole content, checked; each piece is valid until the next one.

    Args:
        descriptor: The file's descriptor; its position does not move.
        content: Its expected content.

    Raises:
        NotCopied: The file has other content, or changed meanwhile.
        OSError: It cannot be read.
    """
    buffer, done = memoryview(bytearray(min(PIECE_BYTES, content.size_bytes + 1))), 0
    digest = hashlib.sha256() if content.checksum is not None else None
    before = os.fstat(descriptor)
    while piece := _read(descriptor, buffer, done):
        if done + len(piece) > content.size_bytes:
            break
        if digest is not None:
            digest.update(piece)
        if content.finite is not None:
            _check_finite(piece, done, content.finite)
        done += len(piece)
        yield piece
    after = os.fstat(descriptor)
    if done != content.size_bytes or _state(before) != _state(after) or after.st_size != done:
        raise NotCopied(Refusal("changed"))
    if digest is not None and digest.hexdigest() != content.checksum:
        raise NotCopied(Refusal("checksum"))


def _read(descriptor: int, buffer: memoryview, offset: int) -> memoryview:
    filled = 0
    while filled < len(buffer) and (count := os.preadv(descriptor, [buffer[filled:]], offset + filled)):
        filled += count
    return buffer[:filled]


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _check_finite(piece: memoryview, done: int, finite: Numbers) -> None:
    start = max(0, finite.offset - done)
    dtype = np.dtype(finite.dtype)
    numbers = np.frombuffer(piece[start:], dtype, max(0, len(piece) - start) // dtype.itemsize)
    if not numbers.size or (np.isfinite(numbers.max()) and np.isfinite(numbers.min())):
        return  # max and min both propagate a NaN
    first = int(np.argmin(np.isfinite(numbers)))
    place = (done + start - finite.offset) // dtype.itemsize + first
    raise NotCopied(Refusal("number", place=place, number=float(numbers[first])))
