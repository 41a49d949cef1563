"""LMDB's pages, read where they lie: where the values of many keys are, found in one call.

py-lmdb lets go of Python's lock and takes it again for each key, so that another thread may be in the way
for milliseconds, and each key waits for memory at every level of the tree. Here a kernel goes down the tree
with a block of keys at once, and fetches what the next step needs of all of them. Nothing is copied.

LMDB guards what is read: within a transaction of its own no page of that transaction's state is written to.
Only format 1 is read, LMDB 0.9's; another is left to py-lmdb. A file may be damaged: each page, node and
value is known to lie within the file before it is read, and what is not as it should be is an error.

- Two pages begin the file. Each says of one state (its transaction's number) where the tree's root is.
- A page has 16 bytes of head (at 0 its number, at 10 its kind, at 12 where the places of its nodes end), then
  the places of its nodes in their keys' order, 2 bytes each.
- A node has 8 bytes of head (in 4 the value's size, or with 2 more the number of the page below; flags; the
  key's size), the key, and the value; or instead of a large value the number of the first page that it is on.
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
from numba.extending import intrinsic as _typed_intrinsic

from headrace.compiled import cached
from headrace.errors import Unavailable
from headrace.objects import BLOCK, LINE, fetch, item_of, text_of
from headrace.stream.hashing import read_uint8, read_uint16, read_uint32, read_uint64
from headrace.tensors import Array

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

_intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context
_cgutils: Any = cgutils

_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_STATE = struct.Struct(
    "<16xII8xQI84xQQQ"
)  # magic, format, size of the map, of a page; root, last page, number
_FIRST = 24  # of a first page what nobody changes: its number, magic, format
_DEPTH = struct.Struct("<94xH")
_PAGE_HEAD, _NODE_HEAD, _NUMBER_BYTES = 16, 8, 8
_BRANCH, _LEAF = 0x01, 0x02
_OVERFLOW = 0x04
_KINDS = 0x6F  # of all kinds of pages that a tree may have
_IS_LARGE, _FLAGS = 0x01, 0x07
_PREFIX_BYTES, _END_BYTES = 4, 5
_LONGEST = 512
_FETCHED_NODES = 16
_DEEPEST = 32
_SMALLEST_PAGE, _LARGEST_PAGE = 512, 32_768
_MS_ASYNC = 1

READ, NO_KEYS, DAMAGED = range(3)
"""How ``find`` ended: all was read; a key can be none; a page is not as it should be, or not in the file."""


class DataFile:
    """The file that an environment has mapped, by a descriptor of its own: how long it is now.

    Attributes:
        longest: How many bytes it had when it was last asked.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            Unavailable: It cannot be opened.
        """
        self.longest = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the LMDB file cannot be read: {error.strerror}") from error

    def size(self) -> int:
        """How many bytes it has now.

        Raises:
            Unavailable: It has become shorter. LMDB never makes it so, and what is beyond its end cannot be
                read without the process's end.
        """
        longest = self.longest  # before it is asked: other threads may see it grow meanwhile
        try:
            size = os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise Unavailable(f"the LMDB file cannot be read, or is closed: {error.strerror}") from error
        if size < longest:
            raise Unavailable(
                f"the LMDB file was cut to {size} bytes, of {longest}: end all processes that have it open, "
                "and put a copy in its place or remove it"
            )
        if size > longest:
            self.longest = size
        return size

    def head(self, count: int) -> bytes:
        """Its first bytes."""
        return os.pread(self._descriptor, count, 0)

    def close(self) -> None:
        """Close it, once: its number may be another file's by then."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Tree(NamedTuple):
    """One state of the tree.

    Attributes:
        base: The address of the first page.
        page_bytes: How long a page is.
        last: The last page's number.
        root: The root's.
        depth: How many levels there are.
    """

    base: int
    page_bytes: int
    last: int
    root: int
    depth: int


class Pages:
    """The pages of an open environment, for as long as it is open."""

    def __init__(self, base: int, page_bytes: int, file: DataFile) -> None:
        """Use ``of``."""
        self._base, self._page_bytes, self._file = base, page_bytes, file
        self._known: tuple[int, Tree] | None = None
        run_once()

    @classmethod
    def of(cls, environment: lmdb.Environment, file: DataFile, key: bytes) -> Pages | None:
        """The pages of an environment; None if they are not of the format that is known here.

        Args:
            environment: The environment.
            file: Its data.
            key: One that is there, with a small value.
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
            # A page says its number, so that the first one's address is known by any other's.
            page = np.frombuffer(value, np.uint8).ctypes.data & -page_bytes
            base = page - ctypes.c_uint64.from_address(page).value * page_bytes
            # The first page is written once; the second one begins with another number.
            if not _is_mapped(base, file.size()) or ctypes.string_at(base, _FIRST) != head[:_FIRST]:
                return None
        return cls(base, page_bytes, file)

    def tree(self, transaction: Any) -> Tree | None:
        """The tree as a transaction sees it; None if that cannot be said.

        Args:
            transaction: One that is open, for as long as the tree is used; begun after the file was found to
                be as long as ever.
        """
        number = transaction.id()
        known = self._known
        if known is not None and known[0] == number:
            return known[1]
        last = self._file.size() // self._page_bytes - 1  # nothing beyond is touched, whatever pages say
        for page in range(min(2, last + 1)):
            at = self._base + page * self._page_bytes
            state = ctypes.string_at(at, _STATE.size)
            magic, version, _, _, root, said, of = _STATE.unpack(state)
            # Another process may be writing it: then it says two things, or a later transaction's.
            if (magic, version, of) == (_MAGIC, _FORMAT, number):
                (depth,) = _DEPTH.unpack_from(state)
                if state != ctypes.string_at(at, _STATE.size) or root > said or depth > _DEEPEST:
                    return None
                tree = Tree(self._base, self._page_bytes, min(said, last), min(root, last + 1), depth)
                self._known = number, tree
                return tree
        return None


def _is_mapped(base: int, size: int) -> bool:
    """Whether there is memory at all of these addresses; the system is asked, nothing is touched."""
    if base <= 0 or base % mmap.PAGESIZE:
        return False
    asked = ctypes.CDLL(None).msync(ctypes.c_void_p(base), ctypes.c_size_t(size), _MS_ASYNC)
    return bool(asked == 0)


@_intrinsic
def _compared(_context: Any, one: Any, other: Any, size: Any) -> Any:
    """Whether bytes come before others (less than 0), are the same (0), or come after them."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        void, number = _cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(number, [void, void, ir.IntType(64)])
        asked = _cgutils.get_or_insert_function(builder.module, kind, "memcmp")
        first, second = (builder.inttoptr(arguments[place], void) for place in (0, 1))
        return builder.call(asked, [first, second, arguments[2]])

    return types.int32(types.int64, types.int64, types.int64), generate


@njit(inline="always")
def _order(key: Any, size: Any, node: Any) -> Any:
    """How a key stands to a node's: less than 0 before it, 0 the same, else after it."""
    other = np.int64(read_uint16(node, 3))
    found = np.int64(_compared(key, node + _NODE_HEAD, min(size, other)))
    return found if found != 0 else size - other


@njit(inline="always")
def _is_page(page: Any, number: Any, kind: Any) -> Any:
    """Whether a page is the one of a number, and of a kind."""
    return np.int64(read_uint64(page, 0)) == number and (read_uint16(page, 5) & _KINDS) == kind


@njit
def _search(page: Any, page_bytes: Any, kind: Any, key: Any, size: Any) -> Any:
    """The node of a branch that a key is below, or of a leaf that is the key's.

    Returns:
        Its address, with its head and its key within the page; 0 if there is none, -1 if the page is not as
        it should be.
    """
    end = np.int64(read_uint16(page, 6))
    if end < _PAGE_HEAD or end > page_bytes:
        return np.int64(-1)
    low, high = np.int64(0), np.int64((end - _PAGE_HEAD) // 2 - 1)
    if kind == _BRANCH:
        low = np.int64(1)  # the first node's key is not said: it is before all others
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
    """The number of the page below a branch where a key is; -1 if a page is not as it should be."""
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
    """Where a key's value lies, and how long it is; 0 if it is not there, -1 as above."""
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
    """Whether the end of a value's time, which follows it, has come."""
    end = np.int64(0)
    for place in range(_END_BYTES if size >= _END_BYTES else 0):
        end = end << 8 | np.int64(read_uint8(at + size - _END_BYTES, place))
    return end <= now


@njit
def _prefixed(texts: Any, start: Any, prefix: Any, keys: Any, sizes: Any) -> Any:
    """Write keys as the tree has them; whether all of them can be ones."""
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
    """Ask for the heads and keys of a leaf's nodes."""
    count = (np.int64(read_uint16(page, 6)) - _PAGE_HEAD) // 2
    if count > _FETCHED_NODES:
        count = np.int64(_FETCHED_NODES)
    for number in range(count):
        place = np.int64(read_uint16(page + _PAGE_HEAD, number)) & (page_bytes - 1)
        fetch(page + place)
        fetch(page + place + LINE)


@cached()
def find(tree: Any, prefix: int, now: int, texts: int, values: Array) -> int:
    """Find where values lie.

    Args:
        tree: A ``Tree``, whose transaction is open.
        prefix: What stands before all keys: 4 bytes, as a number.
        now: The time that values must not be over, where their end follows them; -1 where none does.
        texts: The address of a list of keys, each a text.
        values: Gets the address and the size of those that are there, int64 ``[N, 2]``.

    Returns:
        ``READ``; or why what was found is not to be used.
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
    """Compile or load the kernel here, before anybody waits for it."""
    texts: list[str] = []
    find(Tree(0, 4096, 0, 0, 0), 0, -1, id(texts), np.zeros((0, 2), np.int64))
