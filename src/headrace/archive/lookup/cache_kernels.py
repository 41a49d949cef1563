"""Kernels of the cache: all keys of a lookup are hashed and found, and their vectors copied, in two calls.

The cache consists of sets of eight tags, and of rows. A key's hash selects its set. A set's tags are one
cache line, so that a look-up reads one line. A tag holds the number of the key's row, and 31 bits of the
hash. A row starts with 64 other bits of the hash and the time of caching (milliseconds); the record follows.
Rows are allocated in order, so that memory is taken as vectors come. There are more tags than rows, so that
most sets have a free tag. When no row is left, the clock algorithm evicts a key that was not looked up since
the hand last passed it.

Memory latency dominates: keys, tags and rows are scattered. So a block of keys is prefetched, step by step,
before it is read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils

from headrace.archive.model.records import FORMAT, HEAD_BYTES
from headrace.base.tensors import Array
from headrace.jit.intrinsics import intrinsic, read_uint8, read_uint64
from headrace.jit.kernel_cache import cached
from headrace.jit.packed_arguments import Standing, given
from headrace.jit.python_objects import BLOCK, LINE, bytes_of, encode, fetch, item_of, text_of

# Keys are hashed with SipHash; ``stream/hashing.py`` hashes fields. The keys are texts in Python's memory,
# which are neither joined nor copied. The hash is SipHash-1-3 with 128 bits (Aumasson and Bernstein,
# "SipHash: a fast short-input PRF", 2012) under a random key per cache. So clients cannot construct
# colliding keys, which would be answered with each other's vectors.


@njit(inline="always")
def _turned(value: np.uint64, by: int) -> np.uint64:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@njit(inline="always")
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _turned(v1, 13) ^ v0
    v0 = _turned(v0, 32)
    v2 += v3
    v3 = _turned(v3, 16) ^ v2
    v0 += v3
    v3 = _turned(v3, 21) ^ v0
    v2 += v1
    v1 = _turned(v1, 17) ^ v2
    v2 = _turned(v2, 32)
    return v0, v1, v2, v3


@njit
def siphash(address: int, length: int, key0: np.uint64, key1: np.uint64) -> Any:
    """Return SipHash-1-3 of the bytes at an address, as two halves of 64 bits."""
    v0 = key0 ^ np.uint64(0x736F6D6570736575)
    v1 = key1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = key0 ^ np.uint64(0x6C7967656E657261)
    v3 = key1 ^ np.uint64(0x7465646279746573)
    place = 0
    while place + 8 <= length:
        word = read_uint64(address + place, 0)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        place += 8
    word = np.uint64(length) << np.uint64(56)
    for rest in range(length - place):
        word |= np.uint64(read_uint8(address + place, rest)) << np.uint64(8 * rest)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@cached()
def hash_texts(texts: int, longest: int, secret: Array, hashes: Array) -> int:
    """Hash texts in Python's memory.

    Args:
        texts: Address of a list of texts.
        longest: Maximum length of a text in bytes of UTF-8.
        secret: The two halves of the cache's hash key, uint64.
        hashes: Receives the two halves of each hash, uint64 ``[N, 2]``.

    Returns:
        Bytes of the longest text; or -1 - i, where i is the first index without a text of 1 to ``longest``
        bytes.
    """
    items, longest_found = np.empty(BLOCK, np.int64), 0
    for start in range(0, len(hashes), BLOCK):
        count = min(BLOCK, len(hashes) - start)
        for key in range(count):
            items[key] = item_of(texts, start + key)
            fetch(items[key])
            fetch(items[key] + LINE)
        for key in range(count):
            if items[key] == 0:
                return -1 - start - key
            address, length = text_of(items[key])
            if address == 0 or length == 0 or length > longest:
                return -1 - start - key
            longest_found = max(longest_found, length)
            first, second = siphash(address, length, secret[0], secret[1])
            hashes[start + key, 0], hashes[start + key, 1] = first, second
    return longest_found


_cgutils: Any = cgutils

WAYS = 8
"""Number of tags in a set."""

ROW_HEAD_BYTES = 16
"""Bytes of a row before its record."""

_USED = np.uint64(1)  # of a tag: looked up since the clock's hand last passed
_SLOT = np.uint64(0x1FFFFFFFE)  # of a tag: its row, counted from 1; 0 for none
_HASH = np.uint64(0xFFFFFFFE00000000)  # of a tag: 31 bits of the hash, never 0 where there is a vector
_WRITTEN_AT = 8  # offset in a record
_WRITTEN_WORD = (ROW_HEAD_BYTES + _WRITTEN_AT) // 8


@intrinsic
def _copy(_context: Any, to: Any, start: Any, size: Any) -> Any:
    """Copy bytes from one address to another."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        void = _cgutils.voidptr_t
        target, source = (builder.inttoptr(arguments[place], void) for place in (0, 1))
        _cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(inline="always")
def _set_of(hash_: np.uint64, sets: int) -> Any:
    return np.int64(((hash_ >> np.uint64(32)) * np.uint64(sets)) >> np.uint64(32))


@njit(inline="always")
def _hash_part(hash_: np.uint64) -> np.uint64:
    part = hash_ << np.uint64(33)
    return part if part != 0 else np.uint64(1) << np.uint64(33)


@njit(inline="always")
def _row_of(tag: np.uint64) -> Any:
    """Return the row of a tag; -1 if it has none."""
    return np.int64((tag & _SLOT) >> np.uint64(1)) - 1


@njit(inline="always")
def _way_of(tags: Array, at: Any, hash_: Any) -> Any:
    """Return the index in its set at which a key may be, or -1."""
    part, found = _hash_part(hash_), -1
    for way in range(WAYS):
        if (tags[at, way] & _HASH) == part:
            found = way
    return found


class Held(NamedTuple):
    """Contents of a cache, as ``find`` gets them: laid out once, see ``headrace.jit.packed_arguments``.

    Attributes:
        tags: uint64 ``[sets, WAYS]``.
        rows: uint64 ``[rows, words]``.
        mark_tags: Hashes of marked keys, uint64 ``[sets, WAYS]``.
        mark_times: Times in milliseconds until which they count as absent from the store, and as queued,
            int64 ``[sets, WAYS, 2]``.
        none: Bytes copied for a miss, uint8.
        skip: Offset in a record from which bytes are copied.
    """

    tags: Array
    rows: Array
    mark_tags: Array
    mark_times: Array
    none: Array
    skip: int


@cached()
def find(hashes: Array, held: Any, times: Any, vectors: Array, written: Array, asked: Array) -> int:
    """Look keys up, and copy the vectors found.

    Args:
        hashes: Hashes of the keys, uint64 ``[N, 2]``.
        held: A ``Standing`` of ``Held``.
        times: Earliest write time and caching time of a vector, and the current time, in milliseconds.
        vectors: Receives the copied bytes, uint8 ``[N, size]``.
        written: Receives the write times, uint64 ``[N]``; 0 for misses.
        asked: Receives the indices of the keys to ask the store for, int32 ``[N]``.

    Returns:
        Number of keys to ask for: those without a vector, unless marked as absent and as queued.
    """
    tags, rows, mark_tags, mark_times, oov, skip = given(held)
    written_since, put_since, now = times
    places = np.empty(BLOCK, np.int64)
    size, sets = vectors.shape[1], tags.shape[0]
    out, none, tags_at = vectors.ctypes.data, oov.ctypes.data, tags.ctypes.data
    base, row_bytes = rows.ctypes.data, rows.shape[1] * 8
    asks = 0
    for start in range(0, len(hashes), BLOCK):
        stop = min(start + BLOCK, len(hashes))
        for key in range(start, stop):
            fetch(tags_at + _set_of(hashes[key, 0], sets) * WAYS * 8)
        for key in range(start, stop):
            at = _set_of(hashes[key, 0], sets)
            way = _way_of(tags, at, hashes[key, 0])
            places[key - start] = at * WAYS + way if way >= 0 else -1
            if way >= 0:
                row = base + _row_of(tags[at, way]) * row_bytes
                for line in range(0, row_bytes, LINE):
                    fetch(row + line)
        for key in range(start, stop):
            place, when = places[key - start], np.uint64(0)
            if place >= 0:
                row = _row_of(tags[place // WAYS, place % WAYS])
                if rows[row, 0] == hashes[key, 1] and rows[row, 1] >= put_since:
                    when = rows[row, _WRITTEN_WORD]
                    if when < written_since:
                        when = np.uint64(0)
            written[key] = when
            if when != 0:
                _copy(out + key * size, base + row * row_bytes + ROW_HEAD_BYTES + skip, size)
                tags[place // WAYS, place % WAYS] |= _USED
            else:
                _copy(out + key * size, none, size)
                if not _is_marked(mark_tags, mark_times, hashes[key, 0], now):
                    asked[asks] = key
                    asks += 1
    return asks


@njit(inline="always")
def _is_marked(tags: Array, times: Array, hash_: Any, now: Any) -> bool:
    """Return whether a key is marked as absent and as queued."""
    at, known = _set_of(hash_, tags.shape[0]), False
    for way in range(WAYS):
        if tags[at, way] == hash_:
            known = times[at, way, 0] > now and times[at, way, 1] > now
    return known


@njit
def _free_row(tags: Array, rows: Array, state: Array) -> Any:
    """Return a row for a key whose set has room: an unused one, or that of a key not looked up lately."""
    if state[0] < len(rows):
        state[0] += 1
        return state[0] - 1
    while True:
        at, way = state[1] // WAYS, state[1] % WAYS
        state[1] = (state[1] + 1) % (len(tags) * WAYS)
        if (tags[at, way] & _SLOT) == 0:
            continue
        if (tags[at, way] & _USED) == 0:
            row = _row_of(tags[at, way])
            tags[at, way] = 0
            return row
        tags[at, way] &= ~_USED


@njit
def _way_for(tags: Array, at: Any, hash_: Any) -> Any:
    """Return the index in its set for a key: its own, a free one, or that of a key not looked up lately."""
    way = _way_of(tags, at, hash_)
    if way >= 0:
        return way
    for with_row in (True, False):
        for other in range(WAYS):
            if (tags[at, other] & _HASH) == 0 and ((tags[at, other] & _SLOT) != 0) == with_row:
                return other
    first = np.int64(hash_ % np.uint64(WAYS))
    for step in range(WAYS):
        if (tags[at, (first + step) % WAYS] & _USED) == 0:
            return (first + step) % WAYS
    for other in range(WAYS):  # all were looked up: start a new round
        tags[at, other] &= ~_USED
    return first


@cached()
def put(hashes: Array, table: Any, state: Array, records: Array, how: Any) -> None:
    """Cache records; a cached record that was written later is kept.

    Args:
        hashes: Hashes of the keys, uint64 ``[N, 2]``.
        table: Tags and rows, as in ``Held``.
        state: Number of allocated rows, and position of the clock's hand, int64.
        records: Addresses of the records, int64 ``[N]``; 0 for none.
        how: Bytes of a record, current time in milliseconds, and whether to replace later records too.
    """
    tags, rows = table
    size, now, replaces = how
    tags_at, sets = tags.ctypes.data, tags.shape[0]
    for start in range(0, len(hashes), BLOCK):
        stop = min(start + BLOCK, len(hashes))
        for key in range(start, stop):
            fetch(tags_at + _set_of(hashes[key, 0], sets) * WAYS * 8)
            if records[key] != 0:
                for line in range(0, size, LINE):
                    fetch(records[key] + line)
        for key in range(start, stop):
            if records[key] == 0:
                continue
            at = _set_of(hashes[key, 0], sets)
            way = _way_for(tags, at, hashes[key, 0])
            row = _row_of(tags[at, way])
            if row < 0:
                row = _free_row(tags, rows, state)
            elif (
                (tags[at, way] & _HASH) == _hash_part(hashes[key, 0])
                and rows[row, 0] == hashes[key, 1]
                and not replaces
                and rows[row, _WRITTEN_WORD] > read_uint64(records[key] + _WRITTEN_AT, 0)
            ):
                continue
            tags[at, way] = _hash_part(hashes[key, 0]) | (np.uint64(row + 1) << np.uint64(1))
            rows[row, 0], rows[row, 1] = hashes[key, 1], np.uint64(now)
            _copy(rows.ctypes.data + row * rows.shape[1] * 8 + ROW_HEAD_BYTES, records[key], size)


@njit(inline="always")
def _record(found: Any, length: Any, form: Any, written_since: Any) -> Any:
    """Return the address of a value's record if it has an acceptable vector, else 0."""
    kind, size = form
    if found == 0 or length < size or read_uint8(found, 0) != FORMAT or read_uint8(found, 1) != kind:
        return np.int64(0)
    when = read_uint64(found + _WRITTEN_AT, 0)
    return np.int64(found) if when > 0 and when >= written_since else np.int64(0)


@cached()
def check(values: int, form: Any, written_since: int, records: Array) -> int:
    """Find the values that are records with a vector.

    Args:
        values: Address of a list of ``bytes``.
        form: The numbers' type, as in records, and the bytes of a record.
        written_since: Earliest accepted write time, in milliseconds of Unix time.
        records: Receives the addresses, valid as long as the list, int64 ``[N]``; 0 for other values.

    Returns:
        Number of records.
    """
    items, count = np.empty(BLOCK, np.int64), 0
    for start in range(0, len(records), BLOCK):
        stop = min(start + BLOCK, len(records))
        for place in range(start, stop):
            items[place - start] = item_of(values, place)
            fetch(items[place - start])
            fetch(items[place - start] + LINE)
        for place in range(start, stop):
            records[place] = 0
            if items[place - start] != 0:
                found, length = bytes_of(items[place - start])
                records[place] = _record(found, length, form, written_since)
                count += records[place] != 0
    return count


@cached()
def check_in_place(values: Array, form: Any, written_since: int, records: Array) -> int:
    """Like ``check``, for the addresses and sizes of values, int64 ``[N, 2]``, 0 for none."""
    count = 0
    for place in range(len(records)):
        records[place] = _record(values[place, 0], values[place, 1], form, written_since)
        count += records[place] != 0
    return count


@cached()
def give(records: Array, skip: int, places: Array, vectors: Array, written: Array) -> None:
    """Copy the vectors of records into an answer.

    Args:
        records: Addresses of the records, int64 ``[N]``; 0 for none.
        skip: Offset in a record from which bytes are copied.
        places: Index of each in the answer, int32 ``[N]``.
        vectors: Receives the copied bytes, uint8 ``[…, size]``.
        written: Receives the write times, uint64.
    """
    size, out = vectors.shape[1], vectors.ctypes.data
    for key in range(len(records)):
        if records[key] != 0:
            _copy(out + places[key] * size, records[key] + skip, size)
            written[places[key]] = read_uint64(records[key] + _WRITTEN_AT, 0)


@cached()
def remove(hashes: Array, table: Any) -> None:
    """Remove keys; the row of each stays allocated to its tag, for the next key of the set."""
    tags, rows = table
    for key in range(len(hashes)):
        at = _set_of(hashes[key, 0], tags.shape[0])
        way = _way_of(tags, at, hashes[key, 0])
        if way >= 0 and rows[_row_of(tags[at, way]), 0] == hashes[key, 1]:
            tags[at, way] &= _SLOT


@cached()
def mark(hashes: Array, marks: Any, until: Array) -> None:
    """Mark keys as absent from the store, and as queued.

    Args:
        hashes: Hashes of the keys, uint64 ``[N, 2]``.
        marks: Tags and times of the marks, as in ``Held``.
        until: Ends of both marks in milliseconds, int64 ``[N, 2]``; -1 leaves one unchanged, 0 removes it.
    """
    tags, times = marks
    for key in range(len(hashes)):
        at, way = _set_of(hashes[key, 0], tags.shape[0]), 0
        for other in range(WAYS):
            if tags[at, other] == hashes[key, 0]:
                way = other
                break
            least, others = times[at, way], times[at, other]
            if others[0] + others[1] < least[0] + least[1]:  # free, or the first to expire
                way = other
        if tags[at, way] != hashes[key, 0]:
            tags[at, way] = hashes[key, 0]
            times[at, way, 0] = times[at, way, 1] = 0
        for which in range(2):
            if until[key, which] >= 0:
                times[at, way, which] = until[key, which]


@cached()
def queued(hashes: Array, marks: Any, now: int, still: Array) -> None:
    """Find the keys that are marked as queued.

    Args:
        hashes: Hashes of the keys, uint64 ``[N, 2]``.
        marks: Tags and times of the marks, as in ``Held``.
        now: Current time in milliseconds.
        still: Receives the result, bool ``[N]``.
    """
    tags, times = marks
    for key in range(len(hashes)):
        at = _set_of(hashes[key, 0], tags.shape[0])
        still[key] = False
        for way in range(WAYS):
            if tags[at, way] == hashes[key, 0] and times[at, way, 1] > now:
                still[key] = True


def run_once() -> None:
    """Compile or load all kernels, for the argument types in use."""
    secret, hashes = np.zeros(2, np.uint64), np.zeros((1, 2), np.uint64)
    texts, encoded = ["key"], [b""]
    hash_texts(id(texts), 8, secret, hashes)
    encode(id(texts), id(encoded), 1)
    tags, rows = np.zeros((1, WAYS), np.uint64), np.zeros((1, 5), np.uint64)
    marks = np.zeros((1, WAYS), np.uint64), np.zeros((1, WAYS, 2), np.int64)
    mark(hashes, marks, np.zeros((1, 2), np.int64))
    queued(hashes, marks, 0, np.zeros(1, np.bool_))
    values, records = [bytes(HEAD_BYTES + 8)], np.zeros(1, np.int64)
    check(id(values), (1, HEAD_BYTES + 8), 0, records)
    check_in_place(np.zeros((1, 2), np.int64), (1, HEAD_BYTES + 8), 0, records)
    put(hashes, (tags, rows), np.zeros(2, np.int64), records, (HEAD_BYTES + 8, 0, False))
    found = np.zeros((1, 8), np.uint8), np.zeros(1, np.uint64), np.zeros(1, np.int32)
    held = Standing(Held(tags, rows, *marks, np.zeros(8, np.uint8), HEAD_BYTES))
    find(hashes, held, (0, 0, 0), *found)
    give(records, HEAD_BYTES, np.zeros(1, np.int32), *found[:2])
    remove(hashes, (tags, rows))
