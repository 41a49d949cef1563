"""Expand dictionary and view columns, whose few bytes may stand for gigabytes of values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

MOST_BYTES = 256 * 1024 * 1024
"""Maximum size of the expanded values of one column in one batch."""


def plain(column: pa.Array, field: str = "") -> pa.Array:
    """Return a column without a dictionary and without views.

    Args:
        column: A column of any type; one with neither is returned unchanged.
        field: The field's name, for the error.

    Raises:
        InvalidRequest: Its values would take more than ``MOST_BYTES``.
    """
    if plain_type(column.type) == column.type:
        return column
    if is_listed(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, plain(column.flatten(), field), mask=column.is_null())
    is_dictionary = pa.types.is_dictionary(column.type)
    if is_dictionary:
        column = pa.DictionaryArray.from_arrays(column.indices, plain(column.dictionary, field))
    size = _bytes_of(column) if is_dictionary else int(_sizes(column).sum())
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"the values of one batch would take {size} bytes when expanded; expected at most "
            f"{MOST_BYTES}; write smaller batches, or shorter values",
            field=field,
        )
    return column.dictionary_decode() if is_dictionary else column.cast(plain_type(column.type))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to which ``plain`` converts a column of the given type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_listed(kind) and plain_type(kind.value_type) != kind.value_type:
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def is_listed(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _bytes_of(column: pa.DictionaryArray) -> int:
    """Return the size of a column's values, each counted as often as it occurs."""
    counts = column.indices.value_counts()
    sizes = pc.take(pa.array(_sizes(column.dictionary)), counts.field("values")).fill_null(0.0)
    return int(sizes.to_numpy() @ counts.field("counts").to_numpy())


def _sizes(values: pa.Array) -> Array:
    """Return an upper bound of each value's size in bytes.

    It is exact, and 0 for null, for text and bytes of variable length, and for lists of those.
    """
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        if not len(values):
            return np.zeros(0)
        sizes = np.frombuffer(values.buffers()[1], np.int32)[4 * values.offset :: 4][: len(values)]
        return np.where(values.is_valid(), sizes, 0).astype(np.float64)
    if is_listed(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        totals = np.concatenate([[0.0], np.cumsum(_sizes(values.flatten()))])
        return np.diff(totals[np.concatenate([[0], np.cumsum(lengths)])])
    if pa.types.is_nested(kind):
        return np.full(len(values), float(values.nbytes))  # as if each value were all of them
    try:
        return np.full(len(values), kind.bit_width / 8)
    except ValueError:  # not of fixed width
        found: Array = pc.binary_length(values).cast(pa.float64()).fill_null(0.0).to_numpy()
        return found
