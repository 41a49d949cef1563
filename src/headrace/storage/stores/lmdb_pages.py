"""Read LMDB's pages directly: find the values of many keys in one call, without copying them.

py-lmdb releases and reacquires the GIL for each key. Another thread may then hold it for milliseconds, and
each key waits for memory at every level of the tree. Here a kernel descends the tree with a block of keys at
once and prefetches what the next step needs for all of them.

LMDB protects the pages being read: while a read transaction is open, no page of its snapshot is written to.
Only format 1 (LMDB 0.9) is supported; files in other formats are read through py-lmdb. The file may be
damaged. So each page, node and value is checked to lie within the file before it is read, and an invalid one
is reported as an error.

- The file begins with two meta pages. Each has a transaction number and the root of the tree as of that
  transaction.
- A page has a header of 16 bytes: its number at 0, its kind at 10, the end of the node offsets at 12. The
  offsets of its nodes follow in key order, 2 bytes each.
- A node has a header of 8 bytes, then the key, then the value. In a leaf, the header holds the value's size
  (4 bytes), flags (2) and the key's size (2). In a branch, the first 6 bytes hold the child's page number. A
  large value is replaced by the number of its first overflow page.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from headrace.base.errors import Unavailable
from headrace.base.tensors import Array
from headrace.jit.intrinsics import intrinsic, read_uint8, read_uint16, read_uint32, read_uint64
from headrace.jit.kernel_cache import cached
from headrace.jit.python_objects import BLOCK, LINE, fetch, item_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

# Untyped: as numba annotates it, callers would have to pass the typing context too.
_cgutils: Any = cgutils

_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_STATE = struct.Struct(
    "<16xII8xQI84xQQQ"
)  # magic, format, map size, page size; root, last page, transaction number
_FIRST = 24  # constant start of the first meta page: its number, magic, format
_DEPTH = struct.Struct("<94xH")
_PAGE_HEAD, _NODE_HEAD, _NUMBER_BYTES = 16, 8, 8
_BRANCH, _LEAF = 0x01, 0x02
_OVERFLOW = 0x04
_KINDS = 0x6F  # mask of the flags that tell a page's kind
_IS_LARGE, _FLAGS = 0x01, 0x07
_PREFIX_BYTES, _END_BYTES = 4, 5
_LONGEST = 512
_FETCHED_NODES = 16
_DEEPEST = 32
_SMALLEST_PAGE, _LARGEST_PAGE = 512, 32_768
_MS_ASYNC = 1

READ, NO_KEYS, DAMAGED = range(3)
"""Results of ``find``: success; a key that is not valid; a page that is invalid or outside the file."""


class DataFile:
    """The file that an environment has mapped, opened again to watch its size.

    Attributes:
        longest: Largest size seen so far, in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            Unavailable: The file cannot be opened.
        """
        self.longest = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the LMDB file cannot be read: {error.strerror}") from error

    def size(self) -> int:
        """Return the current size of the file in bytes.

        Raises:
            Unavailable: The file has shrunk, or cannot be read. LMDB never shrinks it, and reading a mapped
                page beyond its end would kill the process.
        """
        longest = self.longest  # read before the size, as another thread may see the file grow meanwhile
        try:
            size = os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise Unavailable(f"the LMDB file cannot be read, or is closed: {error.strerror}") from error
        if size < longest:
            raise Unavailable(
                f"the LMDB file was truncated to {size} bytes, from {longest}: stop all processes that have "
                "it open, then replace it with a copy or remove it"
            )
        if size > longest:
            self.longest = size
        return size

    def head(self, count: int) -> bytes:
        """Return the first ``count`` bytes of the file."""
        return os.pread(self._descriptor, count, 0)

    def close(self) -> None:
        """Close the file, only once: another file may have the same descriptor afterwards."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Tree(NamedTuple):
    """One snapshot of the tree.

    Attributes:
        base: Address of the first page.
        page_bytes: Size of a page in bytes.
        last: Number of the last page.
        root: Number of the root page.
        depth: Number of levels.
    """

    base: int
    page_bytes: int
    last: int
    root: int
    depth: int


class Pages:
    """The pages of an environment, usable while it is open."""

    def __init__(self, base: int, page_bytes: int, file: DataFile) -> None:
        """Take the addresses that ``of`` has found, and compile the kernel."""
        self._base, self._page_bytes, self._file = base, page_bytes, file
        self._known: tuple[int, Tree] | None = None
        run_once()

    @classmethod
    def of(cls, environment: lmdb.Environment, file: DataFile, key: bytes) -> Pages | None:
        """Return the pages of an environment, or None if their format is not supported.

        Args:
            environment: An open environment.
            file: Its data file.
            key: An existing key with a small value.
        """
        head = file.head(_STATE.size)
        if len(head) < _STATE.size or _STATE.unpack(head)[:2] != (_MAGIC, _FORMAT):
            return None
        page_bytes = int(environment.stat()["psize"])
        if page_bytes & (page_bytes - 1) or not _SMALLEST_PAGE <= page_bytes <= _LARGEST_PAGE:
            return None
        with environment.begin(buffers=True) as transaction:
            value: Any = transaction.get(key)
            if not value:
                return None
            # Each page holds its own number, so the address of any page yields that of the first.
            page = np.frombuffer(value, np.uint8).ctypes.data & -page_bytes
            base = page - ctypes.c_uint64.from_address(page).value * page_bytes
            # The first 24 bytes of page 0 never change, and page 1 starts with a different number, so a match
            # proves that this is page 0.
            if not _is_mapped(base, file.size()) or ctypes.string_at(base, _FIRST) != head[:_FIRST]:
                return None
        return cls(base, page_bytes, file)

    def tree(self, transaction: Any) -> Tree | None:
        """Return the tree of a transaction's snapshot, or None if it cannot be determined.

        Args:
            transaction: A transaction that stays open while the tree is used. ``DataFile.size`` was called
                before it began.
        """
        number = transaction.id()
        known = self._known
        if known is not None and known[0] == number:
            return known[1]
        last = self._file.size() // self._page_bytes - 1  # read no page beyond it, whatever pages say
        for page in range(min(2, last + 1)):
            at = self._base + page * self._page_bytes
            state = ctypes.string_at(at, _STATE.size)
            magic, version, _, _, root, said, of = _STATE.unpack(state)
            # Another process may be writing the meta page: two reads then differ, or it has a later number.
            if (magic, version, of) == (_MAGIC, _FORMAT, number):
                (depth,) = _DEPTH.unpack_from(state)
                if state != ctypes.string_at(at, _STATE.size) or root > said or depth > _DEEPEST:
                    return None
                tree = Tree(self._base, self._page_bytes, min(said, last), min(root, last + 1), depth)
                self._known = number, tree
                return tree
        return None


def _is_mapped(base: int, size: int) -> bool:
    """Ask the kernel whether an address range is mapped, without reading it."""
    if base <= 0 or base % mmap.PAGESIZE:
        return False
    asked = ctypes.CDLL(None).msync(ctypes.c_void_p(base), ctypes.c_size_t(size), _MS_ASYNC)
    return bool(asked == 0)


@intrinsic
def _compared(_context: Any, one: Any, other: Any, size: Any) -> Any:
    """Compare bytes as ``memcmp`` does: less than 0, 0, or more than 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        void, number = _cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(number, [void, void, ir.IntType(64)])
        asked = _cgutils.get_or_insert_function(builder.module, kind, "memcmp")
        first, second = (builder.inttoptr(arguments[place], void) for place in (0, 1))
        return builder.call(asked, [first, second, arguments[2]])

    return types.int32(types.int64, types.int64, types.int64), generate


@njit(inline="always")
def _order(key: Any, size: Any, node: Any) -> Any:
    """Compare a key with a node's key: less than 0 if it is smaller, 0 if equal, else more than 0."""
    other = np.int64(read_uint16(node, 3))
    found = np.int64(_compared(key, node + _NODE_HEAD, min(size, other)))
    return found if found != 0 else size - other


@njit(inline="always")
def _is_page(page: Any, number: Any, kind: Any) -> Any:
    """Return whether a page has the expected number and kind."""
    return np.int64(read_uint64(page, 0)) == number and (read_uint16(page, 5) & _KINDS) == kind


@njit
def _search(page: Any, page_bytes: Any, kind: Any, key: Any, size: Any) -> Any:
    """Find the node of a branch page to descend into, or the node of a leaf page with the key.

    Returns:
        Address of the node, whose header and key lie within the page. 0 if there is none, -1 if the page is
        invalid.
    """
    end = np.int64(read_uint16(page, 6))
    if end < _PAGE_HEAD or end > page_bytes:
        return np.int64(-1)
    low, high = np.int64(0), np.int64((end - _PAGE_HEAD) // 2 - 1)
    if kind == _BRANCH:
        low = np.int64(1)  # the first node's key is not stored: it precedes all others
    while low <= high:
        middle = (low + high) // 2
        place = np.int64(read_uint16(page + _PAGE_HEAD, middle))
        if place + _NODE_HEAD > page_bytes:
            return np.int64(-1)
        if place + _NODE_HEAD + np.int64(read_uint16(page + place, 3)) > page_bytes:
            return np.int64(-1)
        order = _order(key, size, page + place)
        if order == 0 and kind == _LEAF:
            return page + place
        if order >= 0:
            low = middle + 1
        else:
            high = middle - 1
    if kind == _LEAF:
        return np.int64(0)
    place = np.int64(read_uint16(page + _PAGE_HEAD, low - 1))
    return page + place if place + _NODE_HEAD <= page_bytes else np.int64(-1)


@njit(inline="always")
def _below(tree: Any, number: Any, key: Any, size: Any) -> Any:
    """Return the number of the child page for a key; -1 if a page is invalid."""
    base, page_bytes, last, _, _ = tree
    page = base + number * page_bytes
    if not _is_page(page, number, _BRANCH):
        return np.int64(-1)
    node = _search(page, page_bytes, _BRANCH, key, size)
    if node <= 0:
        return np.int64(-1)
    below = np.int64(read_uint32(node, 0)) | np.int64(read_uint16(node, 2)) << 32
    return below if below <= last else np.int64(-1)


@njit
def _there(tree: Any, number: Any, key: Any, size: Any) -> Any:
    """Return the address and size of a key's value; address 0 if it is missing, -1 if a page is invalid."""
    base, page_bytes, last, _, _ = tree
    nothing, damaged = (np.int64(0), np.int64(0)), (np.int64(-1), np.int64(0))
    page = base + number * page_bytes
    if not _is_page(page, number, _LEAF):
        return damaged
    node = _search(page, page_bytes, _LEAF, key, size)
    if node <= 0:
        return nothing if node == 0 else damaged
    length, flags = np.int64(read_uint32(node, 0)), read_uint16(node, 2) & _FLAGS
    at = node + _NODE_HEAD + np.int64(read_uint16(node, 3))
    if flags == 0:
        return (at, length) if at + length <= page + page_bytes else damaged
    if flags != _IS_LARGE or at + _NUMBER_BYTES > page + page_bytes:
        return damaged
    large = np.int64(read_uint64(at, 0))
    if large < 0 or large > last:
        return damaged
    first = base + large * page_bytes
    at = first + _PAGE_HEAD
    if at + length > base + (last + 1) * page_bytes or not _is_page(first, large, _OVERFLOW):
        return damaged
    return at, length


@njit
def _is_over(at: Any, size: Any, now: Any) -> Any:
    """Return whether a value has expired, by the expiry time stored after it."""
    end = np.int64(0)
    for place in range(_END_BYTES if size >= _END_BYTES else 0):
        end = end << 8 | np.int64(read_uint8(at + size - _END_BYTES, place))
    return end <= now


@njit
def _prefixed(texts: Any, start: Any, prefix: Any, keys: Any, sizes: Any) -> Any:
    """Write keys with their prefix, as the tree stores them; return whether all of them are valid."""
    for key in range(len(sizes)):
        item = item_of(texts, start + key)
        sizes[key] = item
        fetch(item)
        fetch(item + LINE)
    for key in range(len(sizes)):
        if sizes[key] == 0:
            return False
        at, size = text_of(sizes[key])
        if at == 0 or size > _LONGEST - _PREFIX_BYTES:
            return False
        for place in range(_PREFIX_BYTES):
            keys[key, place] = (prefix >> (8 * (_PREFIX_BYTES - 1 - place))) & 0xFF
        for place in range(size):
            keys[key, _PREFIX_BYTES + place] = read_uint8(at, place)
        sizes[key] = _PREFIX_BYTES + size
    return True


@njit
def _fetch_nodes(page: Any, page_bytes: Any) -> Any:
    """Prefetch the headers and keys of a leaf's nodes."""
    count = (np.int64(read_uint16(page, 6)) - _PAGE_HEAD) // 2
    if count > _FETCHED_NODES:
        count = np.int64(_FETCHED_NODES)
    for number in range(count):
        place = np.int64(read_uint16(page + _PAGE_HEAD, number)) & (page_bytes - 1)
        fetch(page + place)
        fetch(page + place + LINE)


@cached()
def find(tree: Any, prefix: int, now: int, texts: int, values: Array) -> int:
    """Find the values of keys.

    Args:
        tree: A ``Tree`` whose transaction is open.
        prefix: The 4-byte prefix of all keys, as a number.
        now: Values that expire at or before this time are skipped; -1 if values have no expiry time.
        texts: Address of a list of keys, each a text.
        values: Output for the address and size of each value found, int64 ``[N, 2]``.

    Returns:
        ``READ`` on success, else ``NO_KEYS`` or ``DAMAGED``; then ``values`` is not to be used.
    """
    base, page_bytes, last, root, depth = tree
    room, lengths = np.empty((BLOCK, _LONGEST), np.uint8), np.empty(BLOCK, np.int64)
    pages, keys = np.empty(BLOCK, np.int64), room.ctypes.data
    if root > last:
        return DAMAGED
    for start in range(0, len(values), BLOCK):
        count = min(BLOCK, len(values) - start)
        sizes = lengths[:count]
        if not _prefixed(texts, start, prefix, room, sizes):
            return NO_KEYS
        pages[:count] = root
        for _ in range(depth - 1):
            for key in range(count):
                pages[key] = _below(tree, pages[key], keys + key * _LONGEST, sizes[key])
                if pages[key] < 0:
                    return DAMAGED
                fetch(base + pages[key] * page_bytes)
        for key in range(count):
            _fetch_nodes(base + pages[key] * page_bytes, page_bytes)
        for key in range(count):
            at, size = _there(tree, pages[key], keys + key * _LONGEST, sizes[key])
            if at < 0:
                return DAMAGED
            if at > 0:
                if now >= 0:
                    if _is_over(at, size, now):
                        continue
                    size -= _END_BYTES
                fetch(at)
                values[start + key, 0], values[start + key, 1] = at, size
    return READ


def run_once() -> None:
    """Compile or load the kernel now, so that no lookup waits for it."""
    texts: list[str] = []
    find(Tree(0, 4096, 0, 0, 0), 0, -1, id(texts), np.zeros((0, 2), np.int64))
