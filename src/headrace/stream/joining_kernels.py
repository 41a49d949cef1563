"""Compiled joining: read a record batch's columns in Arrow's memory, and join them into one array per kind.

A batch is passed as the address of its C data interface structure (``struct ArrowArray``), so that one call
reads all columns without creating Python objects. Rows are processed in tiles that stay in the L1 cache,
and column by column within a tile, so that each type has a simple loop of its own. The kernels check no
bounds: callers must have validated the batch fully.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from headrace.base.tensors import Array
from headrace.jit.intrinsics import (
    read_float32,
    read_float64,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
    read_uint8,
    read_uint16,
    read_uint32,
    read_uint64,
)
from headrace.jit.kernel_cache import cached
from headrace.stream import joined_columns as of
from headrace.stream.hashing import NO_VALUE, Integer, bucket_of, hash_bytes, hash_integer

TILE = 256
"""Rows per tile: with 32 slots, a tile has 32 KiB."""


_PART: dict[str, Any] = {"nogil": True, "_nrt": False}
"""Options of kernels that create no arrays: they skip reference counts, whose atomic updates cost more than
short loops."""


class Values(NamedTuple):
    """One Arrow array: its type code and the addresses of its buffers; ``valid`` is 0 if nothing is null."""

    type: Integer
    valid: Integer
    values: Integer
    data: Integer
    offset: Integer


class Problem(NamedTuple):
    """The first wrong row, and the number of its field; both are -1 if there is none."""

    row: int
    field: int


@njit(inline="always")
def _child(array: Integer, number: Integer) -> Integer:
    found: Integer = read_int64(read_int64(array, 6), number)
    return found


@njit(inline="always")
def _values(array: Integer, type_: Integer) -> Values:
    """Read a ``struct ArrowArray``."""
    count, buffers = read_int64(array, 3), read_int64(array, 5)
    some_null = read_int64(array, 1) != 0 and count > 0
    return Values(
        np.int64(type_),
        read_int64(buffers, 0) if some_null else np.int64(0),
        read_int64(buffers, 1) if count > 1 else np.int64(0),
        read_int64(buffers, 2) if count > 2 else np.int64(0),
        read_int64(array, 2),
    )


@njit(inline="always")
def _bit(bits: Integer, place: Integer) -> bool:
    return bool((read_uint8(bits, place >> 3) >> np.uint8(place & 7)) & np.uint8(1))


@cached(**_PART)
def _integers(  # noqa: PLR0912  # One loop per type.
    source: Values, first: Integer, count: Integer, found: Array
) -> None:
    """Widen integers and booleans to 64 bits; the result for null is arbitrary."""
    address, type_, start = source.values, source.type, source.offset + first
    if type_ in (of.INT64, of.UINT64):
        for place in range(count):
            found[place] = read_uint64(address, start + place)
    elif type_ == of.INT32:
        for place in range(count):
            found[place] = np.uint64(np.int64(read_int32(address, start + place)))
    elif type_ == of.UINT32:
        for place in range(count):
            found[place] = np.uint64(read_uint32(address, start + place))
    elif type_ == of.INT16:
        for place in range(count):
            found[place] = np.uint64(np.int64(read_int16(address, start + place)))
    elif type_ == of.UINT16:
        for place in range(count):
            found[place] = np.uint64(read_uint16(address, start + place))
    elif type_ == of.INT8:
        for place in range(count):
            found[place] = np.uint64(np.int64(read_int8(address, start + place)))
    elif type_ == of.UINT8:
        for place in range(count):
            found[place] = np.uint64(read_uint8(address, start + place))
    elif type_ == of.BOOL:
        for place in range(count):
            found[place] = np.uint64(_bit(address, start + place))


# ---- Categorical fields --------------------------------------------------------------------------


@cached(**_PART)
def _texts(
    source: Values, first: Integer, count: Integer, seed: np.uint64, found: Array, there: Array
) -> None:
    """Hash texts; empty ones count as missing."""
    for place in range(count):
        at = source.offset + first + place
        if source.type == of.TEXT_32:
            start, end = np.int64(read_int32(source.values, at)), np.int64(read_int32(source.values, at + 1))
        else:
            start, end = read_int64(source.values, at), read_int64(source.values, at + 1)
        there[place] = end > start
        found[place] = hash_bytes(source.data + start, end - start, seed)


@cached(**_PART)
def _plain(
    source: Values, column: np.record, span: tuple[Integer, Integer], found: Array, there: Array
) -> None:
    """Write the hash or the bucket of each value outside a dictionary, and whether it is present.

    Args:
        source: The values.
        column: The field, a ``CATEGORICAL``.
        span: Index of the first value, and number of values.
        found: Receives the hashes or buckets.
        there: Receives whether each value is present.
    """
    first, count = span
    if source.type == of.NULL:
        there[:count] = False
        return
    if source.type in (of.TEXT_32, of.TEXT_64):
        _texts(source, first, count, column.seed, found, there)
    else:
        _integers(source, first, count, found)
        for place in range(count):
            there[place] = found[place] != NO_VALUE
        if column.keys != of.BUCKET:
            for place in range(count):
                found[place] = hash_integer(found[place], column.seed)
    if source.valid != 0:
        for place in range(count):
            there[place] &= _bit(source.valid, source.offset + first + place)


class Entries(NamedTuple):
    """Results of ``_plain`` for the values of a tile or of a dictionary.

    Both arrays are empty for a dictionary that is not read in advance.
    """

    found: Array
    there: Array


@cached(**_PART)
def _load(
    array: Integer, column: np.record, entries: Entries, span: tuple[Integer, Integer], into: Entries
) -> None:
    """Write what ``_plain`` writes, for values with or without a dictionary."""
    source = _values(array, column.type)
    found, there = into
    if column.entry_type < 0:
        _plain(source, column, span, found, there)
        return
    first, count = span
    dictionary = _values(read_int64(array, 7), column.entry_type)
    _integers(source, first, count, found)
    for place in range(count):
        if source.valid != 0 and not _bit(source.valid, source.offset + first + place):
            there[place] = False
            continue
        entry = np.int64(found[place])
        if len(entries.found) > 0:
            found[place], there[place] = entries.found[entry], entries.there[entry]
        else:
            _plain(dictionary, column, (entry, 1), found[place : place + 1], there[place : place + 1])


@cached(nogil=True)
def _entries(array: Integer, columns: Array, rows: int) -> list[Entries]:
    """Read each dictionary once, not for each row, unless it is much longer than the batch."""
    made = []
    for number in range(len(columns)):
        column = columns[number]
        count = np.int64(0)
        values = _child(array, column.child)
        if column.entry_type >= 0:
            if column.shape != of.ONE:
                values = _child(values, 0)
            values = read_int64(values, 7)
            count = read_int64(values, 0)
            if count > 4 * rows:
                count = np.int64(0)
        found, there = np.empty(count, np.uint64), np.empty(count, np.bool_)
        if count > 0:
            _plain(_values(values, column.entry_type), column, (np.int64(0), count), found, there)
        made.append(Entries(found, there))
    return made


@njit(inline="always")
def _wrong(column: np.record, found: np.uint64, there: bool) -> bool:
    return column.keys == of.BUCKET and there and found >= column.buckets


@njit(inline="always")
def _row(column: np.record, found: np.uint64) -> np.uint32:
    bucket = found if column.keys == of.BUCKET else bucket_of(found, column.buckets)
    return np.uint32(column.table_start + bucket)


@njit(inline="always")
def _key(found: np.uint64) -> np.uint64:
    return found if found != np.uint64(0) else np.uint64(1)


@cached(**_PART)
def _put(column: np.record, came: Entries, count: Integer, tile: Array, keys: Array) -> Integer:
    """Write one value per row into its slot of a tile; return the first place with a wrong one, or -1."""
    found, there, slot = came.found, came.there, np.uintp(column.slot)
    start, buckets = column.table_start, column.buckets
    if column.keys == of.EXACT:
        for place in range(count):
            tile[slot, place] = 0
            keys[place, column.key_column] = _key(found[place]) if there[place] else np.uint64(0)
        return -1
    if column.keys == of.HASH:
        for place in range(count):
            bucket = bucket_of(found[place], buckets) if there[place] else np.uint64(0)
            tile[slot, place] = np.uint32(start + bucket)
        return -1
    wrong = False
    for place in range(count):
        bucket = found[place] if there[place] else np.uint64(0)
        wrong |= bucket >= buckets
        tile[slot, place] = np.uint32(start + bucket)
    if wrong:
        for place in range(count):
            if _wrong(column, found[place], there[place]):
                return place
    return -1


@njit(inline="always")
def _ends(array: Integer, column: np.record, row: Integer) -> tuple[Integer, Integer]:
    """Return the start and end of a row's list in the array of values; a null list is empty."""
    lists = _values(array, 0)
    at, shape = lists.offset + row, np.int64(column["shape"])
    if lists.valid != 0 and not _bit(lists.valid, at):
        return np.int64(0), np.int64(0)
    if shape == of.LIST_FIXED:
        return at * column.width, (at + 1) * column.width
    if shape == of.LIST_32:
        return np.int64(read_int32(lists.values, at)), np.int64(read_int32(lists.values, at + 1))
    return read_int64(lists.values, at), read_int64(lists.values, at + 1)


@cached(nogil=True)
def _put_lists(
    array: Integer,
    column: np.record,
    entries: Entries,
    span: tuple[Integer, Integer],
    out: tuple[Array, Array],
) -> Integer:
    """Write each row's values into the field's slots; return the first row with a wrong one, or -1."""
    (first, rows), (tile, keys) = span, out
    found, there = np.empty(column.slots, np.uint64), np.empty(column.slots, np.bool_)
    exact = column.keys == of.EXACT
    for row in range(rows):
        start, end = _ends(array, column, first + row)
        count = min(end - start, column.slots)
        if count > 0:
            _load(_child(array, 0), column, entries, (start, count), Entries(found, there))
        some = False
        for place in range(column.slots):
            is_there = place < count and there[place]
            some |= is_there
            if is_there and _wrong(column, found[place], True):
                return row
            tile[column.slot + place, row] = _row(column, found[place]) if is_there and not exact else 0
            if exact:
                keys[row, column.key_column + place] = _key(found[place]) if is_there else np.uint64(0)
        if not some and not exact:
            tile[column.slot, row] = column.table_start
    return -1


@cached(**_PART)
def _turn(tile: Array, indices: Array) -> None:
    """Transpose a tile's slots into rows."""
    for row in range(np.uintp(indices.shape[0])):
        for slot in range(np.uintp(indices.shape[1])):
            indices[row, slot] = tile[slot, row]


@cached(nogil=True)
def join_categorical(array: Integer, columns: Array, indices: Array, keys: Array) -> Problem:
    """Write the rows of tables, and the keys of exact fields.

    Args:
        array: The address of the batch's ``struct ArrowArray``.
        columns: The fields: ``CATEGORICAL`` each.
        indices: Receives the rows of tables: uint32 ``[rows, slots]``.
        keys: Receives the keys: uint64 ``[rows, exact slots]``.

    Returns:
        The first row with a bucket that is not in its table.
    """
    came = Entries(np.empty(TILE, np.uint64), np.empty(TILE, np.bool_))
    tile = np.empty((indices.shape[1], TILE), np.uint32)
    entries = _entries(array, columns, len(indices))
    for first in range(0, len(indices), TILE):
        end = min(first + TILE, len(indices))
        worst, whose = end, -1
        for number in range(len(columns)):
            column, row_keys = columns[number], keys[first:end]
            values, span = _child(array, column.child), (first, end - first)
            if column.shape == of.ONE:
                _load(values, column, entries[number], span, came)
                wrong = _put(column, came, end - first, tile, row_keys)
            else:
                wrong = _put_lists(values, column, entries[number], span, (tile, row_keys))
            if 0 <= wrong < worst - first:
                worst, whose = first + int(wrong), number
        if whose >= 0:
            return Problem(worst, whose)
        _turn(tile, indices[first:end])
    return Problem(-1, -1)


# ---- Numbers -------------------------------------------------------------------------------------


@njit(inline="always")
def _half(bits: np.uint16) -> np.floating:
    """Return the float16 with these bits."""
    exponent, fraction = np.int64(bits >> 10) & 31, np.float32(np.int64(bits) & 1023)
    if exponent == 31:
        size = np.float32(np.inf) if fraction == 0 else np.float32(np.nan)
    elif exponent == 0:
        size = fraction * np.float32(2.0**-24)
    else:
        size = (np.float32(1024) + fraction) * np.float32(2.0 ** (exponent - 25))
    return -size if bits >> 15 else size


@cached(nogil=True)
def _numbers(source: Values, first: Integer, scratch: Array, found: Array) -> None:
    """Convert numbers of any type to float32; the result for null is arbitrary."""
    count, address, start = len(found), source.values, source.offset + first
    if source.type == of.FLOAT32:
        for place in range(count):
            found[place] = read_float32(address, start + place)
    elif source.type == of.FLOAT64:
        for place in range(count):
            found[place] = np.float32(read_float64(address, start + place))
    elif source.type == of.FLOAT16:
        for place in range(count):
            found[place] = _half(read_uint16(address, start + place))
    elif source.type != of.NULL:
        for tile in range(0, count, TILE):
            size = min(TILE, count - tile)
            _integers(source, first + tile, size, scratch)
            for place in range(size):
                if source.type == of.UINT64:
                    found[tile + place] = np.float32(scratch[place])
                else:
                    found[tile + place] = np.float32(np.int64(scratch[place]))


@cached(nogil=True)
def _without_null(source: Values, first: Integer, null: float, found: Array) -> bool:
    """Replace nulls by a number; return whether all numbers are then finite."""
    if source.type == of.NULL:
        found[:] = np.float32(null)
    elif source.valid != 0:
        for place in range(len(found)):
            if not _bit(source.valid, source.offset + first + place):
                found[place] = np.float32(null)
    wrong = 0
    for place in range(len(found)):
        wrong |= not abs(found[place]) <= np.float32(3.4028235e38)
    return wrong == 0


@cached(nogil=True)
def _put_vectors(array: Integer, column: np.record, first: Integer, scratch: Array, dense: Array) -> Integer:
    """Write each row's vector into its columns; return the first row with a wrong one, or -1."""
    lists, numbers = _values(array, 0), _values(_child(array, 0), column.type)
    for row in range(len(dense)):
        at = lists.offset + first + row
        found = dense[row, column.column : column.column + column.width]
        if lists.valid != 0 and not _bit(lists.valid, at):
            found[:] = np.float32(column.null)
        else:
            _numbers(numbers, at * column.width, scratch, found)
            if not _without_null(numbers, at * column.width, column.null, found):
                return row
    return -1


@cached(nogil=True)
def join_numbers(array: Integer, columns: Array, dense: Array) -> Problem:
    """Write numbers and vectors.

    Args:
        array: The address of the batch's ``struct ArrowArray``.
        columns: The fields: ``NUMBER`` each.
        dense: Receives the numbers: float32 ``[rows, dense_width]``.

    Returns:
        The first row with a number that is not finite as a float32.
    """
    scratch, tile = np.empty(TILE, np.uint64), np.empty(TILE, np.float32)
    for first in range(0, len(dense), TILE):
        end = min(first + TILE, len(dense))
        worst, whose = end, -1
        for number in range(len(columns)):
            column, wrong = columns[number], -1
            values = _child(array, column.child)
            if column.width > 0:
                wrong = int(_put_vectors(values, column, first, scratch, dense[first:end]))
            else:
                source, found = _values(values, column.type), tile[: end - first]
                _numbers(source, first, scratch, found)
                if not _without_null(source, first, column.null, found):
                    wrong = int(np.argmin(np.isfinite(found)))
                for place in range(end - first):
                    dense[first + place, column.column] = found[place]
            if 0 <= wrong < worst - first:
                worst, whose = first + int(wrong), number
        if whose >= 0:
            return Problem(worst, whose)
    return Problem(-1, -1)


@cached(nogil=True)
def join_integers(array: Integer, child: Integer, type_: Integer, found: Array) -> Integer:
    """Widen a column of integers to int64; return the first row that is null, or -1."""
    source = _values(_child(array, child), type_)
    _integers(source, 0, len(found), found.view(np.uint64))
    if source.valid != 0:
        for row in range(len(found)):
            if not _bit(source.valid, source.offset + row):
                return row
    return -1
