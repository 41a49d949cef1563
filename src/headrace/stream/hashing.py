"""Hash categorical values, and map the hashes to rows of tables.

Text and bytes hash to their XXH64, integers to the XXH64 of their eight little-endian bytes. The seed is the
XXH64 of the table's name, so that hashes differ between tables, and agree between fields that share a table.
XXH64 has implementations in most languages, so values that are hashed elsewhere map to the same rows.

Null, empty text and the integer -1 (64 one bits) mean no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numba import njit

from headrace.base.errors import InvalidRequest
from headrace.jit.intrinsics import read_uint8, read_uint32, read_uint64
from headrace.jit.kernel_cache import cached
from headrace.jit.packed_arguments import Standing, given

if TYPE_CHECKING:
    from headrace.base.tensors import Array
    from headrace.stream.schema import Field

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

Integer: TypeAlias = int | np.signedinteger
"""An integer, as in Python or in compiled code."""

NO_VALUE = np.uint64(2**64 - 1)
"""The integer -1, which means no value."""


# ---- XXH64 ---------------------------------------------------------------------------------------


@njit(inline="always")
def _turned(value: np.uint64, by: int) -> np.uint64:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@njit(inline="always")
def _mixed(sum_: np.uint64, word: np.uint64) -> np.uint64:
    return _turned(sum_ + word * _PRIME_2, 31) * _PRIME_1


@njit(inline="always")
def _finished(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(33))) * _PRIME_2
    value = (value ^ (value >> np.uint64(29))) * _PRIME_3
    return value ^ (value >> np.uint64(32))


@njit(inline="always")
def hash_integer(value: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the XXH64 of an integer's eight bytes."""
    sum_ = seed + _PRIME_5 + np.uint64(8)
    sum_ ^= _mixed(np.uint64(0), value)
    return _finished(_turned(sum_, 27) * _PRIME_1 + _PRIME_4)


@njit(inline="always")
def _merged(sum_: np.uint64, lane: np.uint64) -> np.uint64:
    return (sum_ ^ _mixed(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@njit(inline="always")
def _with_byte(sum_: np.uint64, byte: np.uint8) -> np.uint64:
    return _turned(sum_ ^ (np.uint64(byte) * _PRIME_5), 11) * _PRIME_1


@njit(inline="always")
def _with_rest(sum_: np.uint64, address: Integer, length: Integer) -> np.uint64:
    """Hash the last bytes, fewer than 32; branches on the bits of the length avoid mispredicted loops."""
    sum_ += np.uint64(length)
    while length >= 8:
        sum_ = _turned(sum_ ^ _mixed(np.uint64(0), read_uint64(address, 0)), 27) * _PRIME_1 + _PRIME_4
        address += 8
        length -= 8
    if length & 4:
        sum_ = _turned(sum_ ^ (np.uint64(read_uint32(address, 0)) * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
        address += 4
    if length & 2:
        sum_ = _with_byte(_with_byte(sum_, read_uint8(address, 0)), read_uint8(address, 1))
        address += 2
    if length & 1:
        sum_ = _with_byte(sum_, read_uint8(address, 0))
    return _finished(sum_)


@cached(nogil=True, _nrt=False)
def _hash_long(address: Integer, length: Integer, seed: np.uint64) -> np.uint64:
    one, two = seed + _PRIME_1 + _PRIME_2, seed + _PRIME_2
    three, four = seed, seed - _PRIME_1
    end = address + length
    while address + 32 <= end:
        one = _mixed(one, read_uint64(address, 0))
        two = _mixed(two, read_uint64(address, 1))
        three = _mixed(three, read_uint64(address, 2))
        four = _mixed(four, read_uint64(address, 3))
        address += 32
    sum_ = _turned(one, 1) + _turned(two, 7) + _turned(three, 12) + _turned(four, 18)
    sum_ = _merged(_merged(_merged(_merged(sum_, one), two), three), four)
    rest = end - address
    return _with_rest(sum_ + np.uint64(length - rest), address, rest)


@njit(inline="always")
def hash_bytes(address: Integer, length: Integer, seed: np.uint64) -> np.uint64:
    """Return the XXH64 of some bytes in memory."""
    if length < 32:
        return _with_rest(seed + _PRIME_5, address, length)
    hashed: np.uint64 = _hash_long(address, length, seed)
    return hashed


@njit(inline="always")
def bucket_of(hashed: np.uint64, buckets: np.uint64) -> np.uint64:
    """Return the bucket of a hash, from 1: bucket 0 is for missing values."""
    return np.uint64(1) + (((hashed >> np.uint64(32)) * (buckets - np.uint64(1))) >> np.uint64(32))


# ---- Arrays, for requests ------------------------------------------------------------------------


@cached(nogil=True)
def _hash_integers(values: Array, seed: np.uint64, hashes: Array) -> None:
    for place in range(len(values)):
        hashes[place] = hash_integer(np.uint64(values[place]), seed)


@cached(nogil=True)
def _hash_texts(data: Array, ends: Array, seed: np.uint64, hashes: Array) -> None:
    address = data.ctypes.data
    start = 0
    for place in range(len(ends)):
        hashes[place] = hash_bytes(address + start, ends[place] - start, seed)
        start = ends[place]


@cached(nogil=True)
def _to_buckets(hashes: Array, buckets: int, rows: Array) -> None:
    for place in range(len(hashes)):
        rows[place] = bucket_of(hashes[place], np.uint64(buckets))


@lru_cache(maxsize=4096)
def seed_of(table: str) -> np.uint64:
    """Return the seed of a table's hashes."""
    return np.uint64(hash_texts(np.array([table.encode()], dtype=object), np.uint64(0))[0])


def hash_integers(values: Array, seed: np.uint64) -> Array:
    """Return the hashes of integers: uint64, in the same shape."""
    flat = np.ascontiguousarray(values, dtype=values.dtype if values.dtype == np.uint64 else np.int64)
    hashes = np.empty(flat.shape, np.uint64)
    given = flat.reshape(-1).view(np.uint64)
    given.flags.writeable = False  # as in requests: the kernel is compiled for one array type only
    _hash_integers(given, seed, hashes.reshape(-1))
    return hashes


def hash_texts(values: Array, seed: np.uint64) -> Array:
    """Return the hashes of an object array of bytes: uint64, in the same shape."""
    texts = values.reshape(-1).tolist()
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    hashes = np.empty(values.shape, np.uint64)
    _hash_texts(np.frombuffer(b"".join(texts) or b"\0", np.uint8), ends, seed, hashes.reshape(-1))
    return hashes


def keys_of(values: Array, field: Field) -> Array:
    """Return the keys of a field's values, as in ``Block.keys``: uint64 in the same shape, 0 for no value.

    Args:
        values: Integers, or an object array of bytes.
        field: A field whose keys are hash or exact.
    """
    text = values.dtype == object
    seed = seed_of(field.table_name)
    hashes = hash_texts(values, seed) if text else hash_integers(values, seed)
    hashes[hashes == 0] = 1  # 0 means no value.
    hashes[absent(values)] = 0
    return hashes


def absent(values: Array) -> Array:
    """Return whether each value is missing (empty text or -1): bool in the same shape."""
    if values.dtype.kind == "u" and values.dtype.itemsize < 8:
        return np.zeros(values.shape, np.bool_)
    nothing: Array = values == (b"" if values.dtype == object else np.array(-1).astype(values.dtype))
    return nothing


def rows_of(values: Array, field: Field, table_start: int) -> Array:
    """Return the rows of a request's values in the array of all tables.

    Args:
        values: ``[rows]``, or ``[rows, values]`` for a field of several: integers, or bytes as objects.
        field: A field whose keys are hash or bucket.
        table_start: The first row of its table, as in ``Features.table_starts``.

    Returns:
        uint32 in the same shape, as for the stream: a row without any value has the table's first row in its
        first slot; all other empty slots are 0.

    Raises:
        InvalidRequest: A bucket is not in the table.
    """
    none = absent(values)
    if field.keys == "bucket":
        wrong = ~none & ((values < 0) | (values >= field.buckets))
        if wrong.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            raise InvalidRequest(
                f"row {place[0]}: expected a bucket from 0 to {field.buckets - 1}, or -1 for no value, "
                f"got {values[place]}",
                field=field.name,
            )
        rows = (values.astype(np.int64) + table_start).astype(np.uint32)
    else:
        seed = seed_of(field.table_name)
        hashes = hash_texts(values, seed) if values.dtype == object else hash_integers(values, seed)
        rows = np.empty(values.shape, np.uint32)
        _to_buckets(hashes.reshape(-1), field.buckets, rows.reshape(-1))
        rows += np.uint32(table_start)
    if none.any():
        rows[none] = 0
        by_row = rows if rows.ndim > 1 else rows[:, None]
        by_row[~by_row.any(axis=1), 0] = table_start
    return rows


class IntegerFields(NamedTuple):
    """Fields of one integer each as arguments of ``place_integers``: arrays with one element per field.

    Attributes:
        hashed: Whether values are to be hashed; otherwise they are buckets.
        seeds: Hash seeds of their tables.
        buckets: Row counts of their tables.
        starts: First rows of their tables.
        slots: Their columns.
    """

    hashed: Array
    seeds: Array
    buckets: Array
    starts: Array
    slots: Array

    @classmethod
    def of(cls, fields: Sequence[Field], starts: Sequence[int], slots: Sequence[int]) -> IntegerFields:
        """Collect the fields' properties that the kernel needs.

        Args:
            fields: Single-valued fields whose keys are hash or bucket, with integer values.
            starts: First rows of their tables.
            slots: Their columns.
        """
        return cls(
            np.array([field.keys == "hash" for field in fields], np.bool_),
            np.array([seed_of(field.table_name) for field in fields], np.uint64),
            np.array([field.buckets for field in fields], np.int64),
            np.array(starts, np.int64),
            np.array(slots, np.int64),
        )


@cached(nogil=True)
def place_integers(values: Array, every: Standing[IntegerFields], indices: Array) -> int:
    """Write the table rows of integers, as ``rows_of`` returns them, for many fields in one call.

    Args:
        values: int64 ``[fields, rows]``; -1 for no value.
        every: The fields.
        indices: Receives the rows: uint32 ``[rows, slots]``.

    Returns:
        The number of the first field with a bucket that is not in its table, or -1.
    """
    fields = given(every)
    for number in range(len(fields.slots)):
        start, buckets, slot = fields.starts[number], fields.buckets[number], fields.slots[number]
        for row in range(len(indices)):
            value = values[number, row]
            bucket = value
            if value == -1:
                bucket = 0
            elif fields.hashed[number]:
                hashed = hash_integer(np.uint64(value), fields.seeds[number])
                bucket = np.int64(bucket_of(hashed, np.uint64(buckets)))
            elif value < 0 or value >= buckets:
                return number
            indices[row, slot] = np.uint32(start + bucket)
    return -1
