"""Columns with a dictionary made plain: a few bytes of indices may stand for gigabytes of values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidRequest

MOST_BYTES = 256 * 1024 * 1024
"""The most bytes that the values of one column may have in one batch, once each stands for itself."""


def plain(column: pa.Array, field: str = "") -> pa.Array:
    """A column without a dictionary.

    Args:
        column: Any; one without a dictionary is given back as it is.
        field: What the error calls it.

    Raises:
        InvalidRequest: Its values would take more than ``MOST_BYTES``.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    size = _bytes_of(column)
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"the values of one batch would take {size} bytes, each for itself; expected at most "
            f"{MOST_BYTES}; write smaller batches, or shorter values",
            field=field,
        )
    return column.dictionary_decode()


def _bytes_of(column: pa.DictionaryArray) -> int:
    """How many bytes a column's values take at the most, each as often as it is named."""
    values = column.dictionary
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_nested(kind):
        most: int = len(column) * values.nbytes
        return most  # where that is too much, so is what it comes from, mostly
    if not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return 0  # of one width, which is a few bytes
    sizes = pc.binary_length(values).cast(pa.int64())
    size: int = pc.sum(pc.take(sizes, column.indices)).as_py() or 0
    return size
