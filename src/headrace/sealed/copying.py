"""One pass over a file: it is copied, its checksum is computed, and its numbers are looked through.

What is checked is what is copied, with nothing in between. Where the process has a keeper (``use_keeper``),
that one is asked for the copy, and makes it once for all processes that ask; without one, or where it is
away, the copy is made here.
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

from headrace.sealed import copies
from headrace.sealed.copies import SealedCopy
from headrace.tensors import Array

if TYPE_CHECKING:
    from headrace.sealed.asking import Door

PIECE_BYTES = 2**18
"""What is copied, digested and looked through at a time; it stays in a core's cache."""

LARGE_BYTES = 2**20
"""What is smaller each process reads by itself."""

_OWN_SHARE = 0.1
_INDEX = np.dtype(np.uint32)

_keeper: Door | None = None


class Numbers(msgspec.Struct, frozen=True):
    """Floating-point numbers that must all be finite: from a place in a file to its end.

    Attributes:
        dtype: NumPy's text for their type.
        offset: Where they start, in bytes.
    """

    dtype: str
    offset: int


class Patch(msgspec.Struct, frozen=True):
    """Rows of the array in a file that are replaced in its copy.

    Attributes:
        checksum: The SHA-256 of their numbers (uint32) and of their values, one after the other.
        count: How many they are.
        row_bytes: The size of one.
        offset: Where the array starts in the file, in bytes; it reaches to its end.
    """

    checksum: str
    count: int
    row_bytes: int
    offset: int


class Content(msgspec.Struct, frozen=True):
    """What a file must hold.

    Attributes:
        size_bytes: Its size.
        checksum: Its SHA-256, in hexadecimal digits; None for any.
        finite: Which of its numbers must be finite; None for none.
        patch: Which rows are replaced once it is checked; None for none.
    """

    size_bytes: int
    checksum: str | None = None
    finite: Numbers | None = None
    patch: Patch | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """Why a file was not copied.

    Attributes:
        reason: It was changed meanwhile, has another checksum, holds a number that is not finite, or the
            system refused something.
        place: Which number is not finite, counted from the first.
        number: That number.
        errno: What the system said, as a number.
        said: What the system said, for people.
    """

    reason: Literal["changed", "checksum", "number", "system"]
    place: int = 0
    number: float = 0.0
    errno: int = 0
    said: str = ""


class NotCopied(Exception):
    """A file was not copied.

    Attributes:
        refusal: Why.
    """

    def __init__(self, refusal: Refusal) -> None:
        """Say why."""
        super().__init__(refusal.reason)
        self.refusal = refusal


def use_keeper(descriptor: int) -> None:
    """From now on, ask a keeper for copies.

    Args:
        descriptor: The asking end of the keeper's socket; stays the caller's, and must stay open.
    """
    global _keeper  # noqa: PLW0603 - the process's, like the descriptor
    from headrace.sealed.asking import Door  # noqa: PLC0415 - only processes that have a keeper need it

    _keeper = Door(descriptor)


def forget_keeper() -> None:
    """From now on, make copies here."""
    global _keeper  # noqa: PLW0603
    _keeper = None


def sealed_copy(file: io.FileIO, content: Content) -> SealedCopy:
    """A sealed copy of a file: one that is in this process already, the keeper's, or one that is made here.

    Args:
        file: The file, opened.
        content: What it must hold.

    Raises:
        NotCopied: It holds something else, or was changed meanwhile.
        OSError: It cannot be read, or there is no memory for it, or no descriptor.
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
    """A sealed copy of an array's file in which the keeper has replaced rows, for all who ask for the same.

    Args:
        file: The file, opened.
        content: What it must hold.
        offset: Where the array starts in it, in bytes.
        rows: Numbers of rows that it has.
        values: What they are to be.

    Returns:
        None where the caller is to replace them: without a keeper, or where they are on few pages.

    Raises:
        NotCopied: The file holds something else, or was changed meanwhile.
        OSError: It cannot be read, or there is no memory for it, or no descriptor.
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
    """Whether replacing rows would make more than a part of an array's pages each process's own."""
    pages = len(np.unique(rows.astype(np.int64) * row_bytes // mmap.PAGESIZE))
    return pages * mmap.PAGESIZE > _OWN_SHARE * size_bytes


def kept_checksum(file: io.FileIO, size_bytes: int, between: Callable[[], object]) -> str | None:
    """The SHA-256 of a large file in hexadecimal digits, as the keeper computes it once for all who ask.

    Args:
        file: The file, opened.
        size_bytes: Its size.
        between: Called about once a second while it is waited for; what it raises ends the waiting.

    Returns:
        None where the caller is to compute it: without a keeper, or for a small file.

    Raises:
        NotCopied: The file was changed meanwhile.
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
        descriptor: Of the file; its position stays where it is.
        content: What it must hold.
        between: Called with the size of each piece that has been copied; what it raises ends the copying.
        patch: The descriptor of what ``content.patch`` tells of: numbers of rows, and values.

    Raises:
        NotCopied: It holds something else, or was changed meanwhile.
        OSError: It cannot be read, or there is no memory for it, or no descriptor.
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
    """Write a patch's rows into a copy that is not sealed yet; it is not mapped any more then."""
    size = patch.count * (_INDEX.itemsize + patch.row_bytes)
    array_bytes = size_bytes - patch.offset
    if os.fstat(source).st_size != size or min(size, array_bytes) <= 0 or array_bytes % patch.row_bytes:
        raise OSError(errno.EINVAL, "the patch is not as large as it is said to be")
    with mmap.mmap(source, size, prot=mmap.PROT_READ) as given, mmap.mmap(descriptor, size_bytes) as whole:
        rows = np.frombuffer(given, _INDEX, patch.count)
        values = np.frombuffer(given, np.uint8, offset=rows.nbytes).reshape(patch.count, patch.row_bytes)
        table = np.frombuffer(whole, np.uint8, offset=patch.offset).reshape(-1, patch.row_bytes)
        is_within = bool(rows.max() < len(table))
        if is_within:
            table[rows] = values
        del rows, values, table
    if not is_within:
        raise OSError(errno.EINVAL, "the patch has rows beyond the table")


def pieces(descriptor: int, content: Content) -> Iterator[memoryview]:
    """A file's whole content, checked; each piece is valid until the next one.

    Args:
        descriptor: Of the file; its position stays where it is.
        content: What it must hold.

    Raises:
        NotCopied: It holds something else, or was changed meanwhile.
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
        return  # a NaN is the largest, and the smallest, too
    first = int(np.argmin(np.isfinite(numbers)))
    place = (done + start - finite.offset) // dtype.itemsize + first
    raise NotCopied(Refusal("number", place=place, number=float(numbers[first])))
