"""Hash the texts of a batch of requests to rows and keys: all fields and requests in one compiled call.

Hashes and rows are those of ``headrace.stream.hashing``, which learning uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached
from headrace.model.packed_columns import HEAD, PLACE
from headrace.stream.hashing import bucket_of, hash_bytes, seed_of
from headrace.stream.schema import Field

MOST_PACKED_BYTES = 2**31 - 1
"""The most bytes of text that can be packed."""


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


def packed(arrays: Sequence[Array], rows: int) -> tuple[Array, Array]:
    """Pack texts that are Python objects as one request, in the form that ``place_texts`` takes.

    Args:
        arrays: Arrays of ``bytes``, each with this number of rows.
        rows: Number of rows.

    Returns:
        The concatenated texts, and the request's places.

    Raises:
        OverflowError: The texts exceed ``MOST_PACKED_BYTES``.
    """
    texts: list[bytes] = []
    for array in arrays:
        texts += array.reshape(-1).tolist()
    data = b"".join(texts)
    if len(data) > MOST_PACKED_BYTES:
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
