"""Expand dictionary and view columns, whose few bytes may stand for gigabytes of values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import InvalidRequest

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
    kind = plain_type(column.type)
    if kind == column.type:
        return column
    is_dictionary = pa.types.is_dictionary(column.type)
    size = _bytes_of(column) if is_dictionary else _bytes_of_views(column)
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"the values of one batch would take {size} bytes when expanded; expected at most "
            f"{MOST_BYTES}; write smaller batches, or shorter values",
            field=field,
        )
    if not is_dictionary:
        return column.cast(kind)
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind)).dictionary_decode()


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to which ``plain`` converts a column of the given type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) and plain_type(kind.value_type) != kind.value_type:
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _bytes_of_views(column: pa.Array) -> int:
    """Return the size of the values of a column of views, which may share bytes."""
    if pa.types.is_list(column.type):
        return _bytes_of_views(column.values)
    if not len(column):
        return 0
    sizes = np.frombuffer(column.buffers()[1], np.int32)[4 * column.offset :: 4][: len(column)]
    return int(sizes.sum(dtype=np.int64))


def _bytes_of(column: pa.DictionaryArray) -> int:
    """Return an upper bound on the size of a column's values, each counted as often as it occurs."""
    values = column.dictionary
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_nested(kind):
        most: int = len(column) * values.nbytes
        return most  # as if each row held the whole dictionary
    if not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return 0  # values of fixed width are taken to be small
    sizes = pc.binary_length(values).cast(pa.int64())
    size: int = pc.sum(pc.take(sizes, column.indices)).as_py() or 0
    return size
