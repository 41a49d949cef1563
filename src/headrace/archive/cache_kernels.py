"""The cache's kernels: keys are looked for and their vectors copied in one call for all of them.

The cache is sets of eight tags, and rows. A key's hash says its set; the set's tags are one line of the
processor's memory, so that a look costs one line. A tag says which row the key's vector is in, and has 31
bits of the hash; the row begins with 64 others, and with when it was put there (milliseconds); then comes the
record. Rows are handed out one after the other, so that memory is taken as vectors come. There are more tags
than rows, so that few sets are ever full. Where no row is left, one is taken from a key that nobody has asked
for since the hand of the clock last came by.

Memory is what takes the time: keys, tags and rows lie anywhere. So a block of keys is fetched ahead, step by
step, before it is looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as _typed_intrinsic

from headrace.archive.text_hashing import hash_texts
from headrace.compiled import cached
from headrace.objects import BLOCK, LINE, bytes_of, encode, fetch, item_of
from headrace.standing import Standing, given
from headrace.stream.hashing import read_uint8, read_uint64
from headrace.tensors import Array

_intrinsic: Any = _typed_intrinsic  # its own types want all arguments at every call, also the typing context
_cgutils: Any = cgutils

WAYS = 8
"""How many places a set has."""

ROW_HEAD_BYTES = 16
"""What a row has before its record."""

HEAD_BYTES = 16
"""What a record has before its vector; see ``headrace.archive.records``."""

FORMAT = 1
"""The first byte of every record."""

_USED = np.uint64(1)  # of a tag: somebody has asked for it since the hand came by
_SLOT = np.uint64(0x1FFFFFFFE)  # of a tag: its row, counted from 1; a tag without one is 0
_HASH = np.uint64(0xFFFFFFFE00000000)  # of a tag: 31 bits of the hash, never 0 where there is a vector
_WRITTEN_AT = 8  # in a record
_WRITTEN_WORD = (ROW_HEAD_BYTES + _WRITTEN_AT) // 8


@_intrinsic
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
    """The row of a tag; -1 if it has none."""
    return np.int64((tag & _SLOT) >> np.uint64(1)) - 1


@njit(inline="always")
def _way_of(tags: Array, at: Any, hash_: Any) -> Any:
    """Where in its set a key may be, or -1."""
    part, found = _hash_part(hash_), -1
    for way in range(WAYS):
        if (tags[at, way] & _HASH) == part:
            found = way
    return found


class Held(NamedTuple):
    """What a cache holds, as ``find`` gets it: laid out once, see ``headrace.standing``.

    Attributes:
        tags: uint64 ``[sets, WAYS]``.
        rows: uint64 ``[rows, words]``.
        mark_tags: Of keys that a store has not, uint64 ``[sets, WAYS]``.
        mark_times: Until when these are not looked for again, and until when they are queued, in
            milliseconds, int64 ``[sets, WAYS, 2]``.
        none: What is copied where there is no vector, uint8.
        skip: From where in a record is copied.
    """

    tags: Array
    rows: Array
    mark_tags: Array
    mark_times: Array
    none: Array
    skip: int


@cached()
def find(hashes: Array, held: Any, times: Any, vectors: Array, written: Array, asked: Array) -> int:
    """Look for keys, and copy the vectors of those that are there.

    Args:
        hashes: Of the keys, uint64 ``[N, 2]``.
        held: A ``Held`` that stands.
        times: The earliest times that a vector may have been written and put here, and the time now, in
            milliseconds.
        vectors: Gets what is copied, uint8 ``[N, size]``.
        written: Gets when each was written, uint64 ``[N]``; 0 for those that are not there.
        asked: Gets the places of those that are to be asked for, int32 ``[N]``.

    Returns:
        How many are to be asked for: there is no vector here, nor a mark that there is none and it is queued.
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
    """Whether a key is known to be missing, and to be queued."""
    at, known = _set_of(hash_, tags.shape[0]), False
    for way in range(WAYS):
        if tags[at, way] == hash_:
            known = times[at, way, 0] > now and times[at, way, 1] > now
    return known


@njit
def _free_row(tags: Array, rows: Array, state: Array) -> Any:
    """A row for a key whose set has room: one that was never used, or that nobody has asked for of late."""
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
    """Where in its set a key goes: where it is, where there is room, or where nobody has asked of late."""
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
    for other in range(WAYS):  # all were asked for: from here on it counts anew
        tags[at, other] &= ~_USED
    return first


@cached()
def put(hashes: Array, table: Any, state: Array, records: Array, how: Any) -> None:
    """Put records where lookups find them; one that is there and was written later stays.

    Args:
        hashes: Of the keys, uint64 ``[N, 2]``.
        table: As for ``find``.
        state: How many rows were handed out, and where the hand of the clock is, int64.
        records: Where each record lies, int64 ``[N]``; 0 for none.
        how: How long one is, the time in milliseconds, and whether they replace also what was written later.
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
    """Where a value's record with a vector lies; 0 if it has none that is wanted."""
    kind, size = form
    if found == 0 or length < size or read_uint8(found, 0) != FORMAT or read_uint8(found, 1) != kind:
        return np.int64(0)
    when = read_uint64(found + _WRITTEN_AT, 0)
    return np.int64(found) if when > 0 and when >= written_since else np.int64(0)


@cached()
def check(values: int, form: Any, written_since: int, records: Array) -> int:
    """Say which values are records with a vector, and where those lie.

    Args:
        values: The address of a list of ``bytes``.
        form: The numbers' type, as records say it, and how long a record is.
        written_since: The earliest time that one may have been written, in milliseconds.
        records: Gets where each lies, for as long as the list does, int64 ``[N]``; 0 for what is none.

    Returns:
        How many are.
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
    """The same of values that lie anywhere: their addresses and sizes, int64 ``[N, 2]``, 0 for none."""
    count = 0
    for place in range(len(records)):
        records[place] = _record(values[place, 0], values[place, 1], form, written_since)
        count += records[place] != 0
    return count


@cached()
def give(records: Array, skip: int, places: Array, vectors: Array, written: Array) -> None:
    """Put the vectors of records into an answer.

    Args:
        records: Where each record lies, int64 ``[N]``; 0 for none.
        skip: From where in a record is copied.
        places: Where in the answer each belongs, int32 ``[N]``.
        vectors: Gets what is copied, uint8 ``[…, size]``.
        written: Gets when they were written, uint64.
    """
    size, out = vectors.shape[1], vectors.ctypes.data
    for key in range(len(records)):
        if records[key] != 0:
            _copy(out + places[key] * size, records[key] + skip, size)
            written[places[key]] = read_uint64(records[key] + _WRITTEN_AT, 0)


@cached()
def remove(hashes: Array, table: Any) -> None:
    """Forget keys; their rows stay with their sets."""
    tags, rows = table
    for key in range(len(hashes)):
        at = _set_of(hashes[key, 0], tags.shape[0])
        way = _way_of(tags, at, hashes[key, 0])
        if way >= 0 and rows[_row_of(tags[at, way]), 0] == hashes[key, 1]:
            tags[at, way] &= _SLOT


@cached()
def mark(hashes: Array, marks: Any, until: Array) -> None:
    """Say of keys until when they are not looked for in the store, and until when they are queued.

    Args:
        hashes: Of the keys, uint64 ``[N, 2]``.
        marks: As for ``find``.
        until: In milliseconds, int64 ``[N, 2]``; -1 leaves what was said, 0 takes it back.
    """
    tags, times = marks
    for key in range(len(hashes)):
        at, way = _set_of(hashes[key, 0], tags.shape[0]), 0
        for other in range(WAYS):
            if tags[at, other] == hashes[key, 0]:
                way = other
                break
            least, others = times[at, way], times[at, other]
            if others[0] + others[1] < least[0] + least[1]:  # it is free, or over the soonest
                way = other
        if tags[at, way] != hashes[key, 0]:
            tags[at, way] = hashes[key, 0]
            times[at, way, 0] = times[at, way, 1] = 0
        for which in range(2):
            if until[key, which] >= 0:
                times[at, way, which] = until[key, which]


@cached()
def queued(hashes: Array, marks: Any, now: int, still: Array) -> None:
    """Say which keys are queued already.

    Args:
        hashes: Of the keys, uint64 ``[N, 2]``.
        marks: As for ``find``.
        now: The time in milliseconds.
        still: Gets it, bool ``[N]``.
    """
    tags, times = marks
    for key in range(len(hashes)):
        at = _set_of(hashes[key, 0], tags.shape[0])
        still[key] = False
        for way in range(WAYS):
            if tags[at, way] == hashes[key, 0] and times[at, way, 1] > now:
                still[key] = True


def run_once() -> None:
    """Compile or load all kernels here, for all types of arguments that they get."""
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
