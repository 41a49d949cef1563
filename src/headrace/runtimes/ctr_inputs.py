"""Place a click model's inputs in its arrays: texts, integers, joined buckets, and numbers.

All texts of a batch of requests are hashed in one compiled call. Hashes and rows are those of
``headrace.stream.hashing``, which learning uses. Kernels take arrays one by one where calls are short,
because numba unpacks tuples slowly through Python's C API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.intrinsics import read, write
from headrace.jit.kernel_cache import cached, kernel, part
from headrace.jit.packed_arguments import Standing
from headrace.model.packed_columns import HEAD, PLACE
from headrace.stream.block import Features
from headrace.stream.hashing import IntegerFields, bucket_of, hash_bytes, seed_of
from headrace.stream.schema import Field

_MOST_PACKED_BYTES = 2**31 - 1
"""The most bytes of text that can be packed."""

_PADDING = 2**32 - 1


class TextFields(NamedTuple):
    """Text fields as arguments of ``place_texts``: arrays with one element per field.

    Attributes:
        exact: Whether each value has a table row of its own; if so, values become keys.
        seeds: Hash seeds of their tables.
        buckets: Row counts of their tables.
        starts: First rows of their tables.
        columns: Their first columns: in the keys for exact fields, in the indices for others.
        values: Number of values per row.
    """

    exact: Array
    seeds: Array
    buckets: Array
    starts: Array
    columns: Array
    values: Array

    @classmethod
    def of(cls, fields: Sequence[Field], starts: Sequence[int], columns: Sequence[int]) -> TextFields:
        """Collect the fields' properties that the kernel needs.

        Args:
            fields: Text fields whose keys are hash or exact.
            starts: First rows of their tables.
            columns: Their first columns.
        """
        return cls(
            np.array([field.keys == "exact" for field in fields], np.bool_),
            np.array([seed_of(field.table_name) for field in fields], np.uint64),
            np.array([field.buckets for field in fields], np.uint64),
            np.array(starts, np.int64),
            np.array(columns, np.int64),
            np.array([field.values for field in fields], np.int64),
        )


class Places(NamedTuple):
    """Where the values of fields go: each field with its table's first row and its first slot.

    Attributes:
        names: The names of fields of one hashed or bucketed integer, which one kernel places together.
        integers: These fields, for the kernel.
        text_names: The names of text fields.
        texts: The text fields, for their kernel.
        others: Integer fields that are exact or have several values.
    """

    names: tuple[str, ...]
    integers: Standing[IntegerFields]
    text_names: tuple[str, ...]
    texts: TextFields
    others: tuple[tuple[Field, int, int], ...]


def places_of(features: Features) -> Places:
    """Return where the values of a layout's categorical fields go."""
    starts, slots = features.table_starts.tolist(), features.slot_starts.tolist()[:-1]
    every = list(zip(features.categorical, starts, slots, strict=True))
    plain = tuple(one for one in every if _is_one_integer(one[0]))
    fields = [field for field, _, _ in plain]
    starts_of, slots_of = [start for _, start, _ in plain], [slot for _, _, slot in plain]
    integers = Standing(IntegerFields.of(fields, starts_of, slots_of))
    texts = [one for one in every if is_text(one[0])]
    key_columns = {slot: number for number, slot in enumerate(features.exact_slots)}
    columns = [key_columns.get(slot, slot) for _, _, slot in texts]
    text_fields = TextFields.of([field for field, _, _ in texts], [start for _, start, _ in texts], columns)
    others = tuple(one for one in every if not (_is_one_integer(one[0]) or is_text(one[0])))
    names, text_names = (tuple(one.name for one in some) for some in (fields, [one[0] for one in texts]))
    return Places(names, integers, text_names, text_fields, others)


def _is_one_integer(field: Field) -> bool:
    return field.values == 1 and field.keys != "exact" and (field.keys == "bucket" or not field.text)


def is_text(field: Field) -> bool:
    """Return whether a field's values are texts."""
    return field.text and field.keys != "bucket"


def packed(arrays: Sequence[Array], rows: int) -> tuple[Array, Array]:
    """Pack texts that are Python objects as one request, in the form that ``place_texts`` takes.

    Args:
        arrays: Arrays of ``bytes``, each with this number of rows.
        rows: Number of rows.

    Returns:
        The concatenated texts, and the request's places.

    Raises:
        OverflowError: The texts exceed ``_MOST_PACKED_BYTES``.
    """
    texts: list[bytes] = []
    for array in arrays:
        texts += array.reshape(-1).tolist()
    data = b"".join(texts)
    if len(data) > _MOST_PACKED_BYTES:
        raise OverflowError(f"too much text at once: {len(data)} bytes")
    head = HEAD + len(arrays)
    places = np.empty(head + 2 * len(texts), PLACE)
    places[:HEAD] = len(places), rows, len(data)
    places[HEAD:head] = rows
    sizes = np.fromiter(map(len, texts), PLACE, len(texts))
    places[head::2] = np.cumsum(sizes) - sizes
    places[head + 1 :: 2] = sizes
    places.flags.writeable = False  # as for a batch: the kernel is compiled for one array type only
    return np.frombuffer(data or b"\0", np.uint8), places


@cached(nogil=True)
def place_texts(data: Array, places: Array, fields: TextFields, indices: Array, keys: Array) -> None:
    """Write each text's row in the array of all tables, or its key if the field is exact.

    If a row has no value of a field, its first index is the table's first row. Other empty slots are 0.

    Args:
        data: The concatenated messages of the requests.
        places: The requests' places; see ``packed_columns``. They must point into the messages.
        fields: The fields, in the order of the requests' text inputs.
        indices: Receives rows: uint32 ``[rows, slots]``; may have more rows than the requests.
        keys: Receives keys: uint64 ``[rows, exact slots]``.
    """
    address: Any = np.int64(data.ctypes.data)
    at: Any = 0
    row: Any = 0
    while at < len(places):
        place = at + HEAD + len(fields.columns)
        rows = np.int64(places[at + 1])
        for number in range(len(fields.columns)):
            came, values = np.int64(places[at + HEAD + number]), fields.values[number]
            column, seed, exact = fields.columns[number], fields.seeds[number], fields.exact[number]
            start, buckets = fields.starts[number], fields.buckets[number]
            for to in range(row, row + came):
                none = True
                for value in range(values):
                    size = np.int64(places[place + 1])
                    hashed = np.uint64(0)
                    if size > 0:
                        hashed = hash_bytes(address + np.int64(places[place]), size, seed)
                        none = False
                    place += 2
                    if exact:
                        key = hashed if size == 0 or hashed != np.uint64(0) else np.uint64(1)
                        keys[to, column + value] = key
                    elif size > 0:
                        found = np.int64(bucket_of(hashed, buckets))
                        indices[to, column + value] = np.uint32(start + found)
                    else:
                        indices[to, column + value] = np.uint32(0)
                if none and not exact:
                    indices[to, column] = np.uint32(start)
            for to in range(row + came, row + rows):
                for value in range(values):
                    if exact:
                        keys[to, column + value] = keys[row, column + value]
                    else:
                        indices[to, column + value] = indices[row, column + value]
        row += rows
        address += np.int64(places[at + 2])
        at += np.int64(places[at])


@kernel()
def join(context: Array, candidate: Array, starts: Array, buckets: Array, indices: Array) -> bool:
    """Join the context's rows and the candidates'; return whether all buckets are within their tables.

    Args:
        context: Buckets of the context: uint32 ``[rows, slots]``, 2**32 - 1 for a slot without a value.
        candidate: Buckets of the candidates, likewise.
        starts: First row of each slot's table: int64.
        buckets: Number of rows of each slot's table: int64.
        indices: Output for the rows of the tables: uint32.
    """
    bad = 0
    for row in range(len(indices)):
        bad += _place(context, row, (starts, buckets), indices, 0)
        bad += _place(candidate, row, (starts, buckets), indices, context.shape[1])
    return bad == 0


@part()
def _place(came: Array, row: int, tables: tuple[Array, Array], indices: Array, first: int) -> int:
    """Turn a row's buckets into rows of all tables, from slot ``first`` on; return how many are invalid."""
    starts, buckets = tables
    bad = 0
    for column in range(came.shape[1]):
        bucket, slot = np.int64(read(came, (row, column))), first + column
        padding = bucket == _PADDING
        bad += bucket >= read(buckets, slot) and not padding
        write(indices, (row, slot), np.uint32(0 if padding else bucket + read(starts, slot)))
    return bad


@kernel()
def join_numbers(context: Array, candidate: Array, dense: Array) -> bool:
    """Join the context's numbers and the candidates'; return whether all are finite.

    Args:
        context: Numbers of the context: float32 ``[rows, columns]``.
        candidate: Numbers of the candidates, likewise.
        dense: Output for the dense columns.
    """
    bad = 0
    for row in range(len(dense)):
        bad += _copy(context, row, dense, 0)
        bad += _copy(candidate, row, dense, context.shape[1])
    return bad == 0


@part()
def _copy(came: Array, row: int, dense: Array, first: int) -> int:
    """Copy a row's numbers; return how many are not finite."""
    bad = 0
    for column in range(came.shape[1]):
        number = read(came, (row, column))
        bad += not np.isfinite(number)
        write(dense, (row, first + column), number)
    return bad


@kernel()
def transpose(columns: Array, dense: Array) -> bool:
    """Transpose columns of numbers; return whether all are finite.

    Args:
        columns: float32 ``[columns, rows]``.
        dense: Output: float32 ``[rows, columns]``.
    """
    bad = 0
    for row in range(len(dense)):
        for column in range(dense.shape[1]):
            number = read(columns, (column, row))
            bad += not np.isfinite(number)
            write(dense, (row, column), number)
    return bad == 0
