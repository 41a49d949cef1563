"""Record batches: full validation, and the expansion of dictionary and view columns.

Batches are validated down to every offset and text, but shared dictionaries only once. The few bytes of a
dictionary or view column may stand for gigabytes of values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array


class Validator:
    """Validates the record batches of one stream.

    A dictionary shared by many batches may be larger than all of them, so it is validated only when new.

    Attributes:
        again: Whether dictionaries are nested so deeply that they are validated again with each batch.
    """

    def __init__(self, columns: pa.Schema) -> None:
        """Examine the columns' types."""
        coded = [number for number, field in enumerate(columns) if _has_dictionary(field.type)]
        self._coded = [number for number in coded if _is_coded(columns.field(number).type)]
        self.again = len(coded) > len(self._coded)
        self._texts = any(field.type in _OFFSETS for field in columns)

    def validate(self, batch: pa.RecordBatch, *, new_dictionaries: bool) -> None:
        """Validate a batch.

        Args:
            batch: The batch.
            new_dictionaries: Whether a dictionary was received or extended since the batch before.

        Raises:
            pa.ArrowInvalid: The batch is invalid.
        """
        if new_dictionaries or self.again or not (self._coded or self._texts):
            batch.validate(full=True)
            return
        batch.validate()
        columns = batch.columns
        for number in self._coded:
            columns[number] = _indices(columns[number])
        for column in columns:
            if not _is_plain(column):
                column.validate(full=True)


def _is_plain(column: pa.Array) -> bool:
    """Whether texts are all non-null, contiguous ASCII; faster than Arrow, which checks each text."""
    if column.type not in _OFFSETS or not len(column):
        return False
    valid, offsets, data = column.buffers()
    end = column.offset + len(column) + 1  # the buffer may be larger, by part of an offset even
    places = np.frombuffer(offsets, _OFFSETS[column.type], end)[column.offset :]
    ascii_bytes = 0 if data is None or np.frombuffer(data, np.int8).min(initial=0) < 0 else data.size
    return bool(
        valid is None and places[0] >= 0 and places[-1] <= ascii_bytes and (places[1:] >= places[:-1]).all()
    )


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _is_coded(kind: pa.DataType) -> bool:
    """Whether a type is a dictionary, or a list of dictionary values."""
    values = kind.value_type if is_listed(kind) else kind
    return bool(pa.types.is_dictionary(values)) and not _has_dictionary(values.value_type)


def _indices(column: pa.Array) -> pa.Array:
    """Return a column with its values replaced by dictionary indices, after checking their range."""
    if not pa.types.is_dictionary(column.type):
        column.validate()  # Sufficient to follow its pointers.
        within = column.values
        kind = {
            pa.types.is_large_list: pa.large_list,
            pa.types.is_list: pa.list_,
            pa.types.is_fixed_size_list: lambda one: pa.list_(one, column.type.list_size),
        }
        listed = next(make for is_it, make in kind.items() if is_it(column.type))
        buffers = column.buffers()[: 1 if pa.types.is_fixed_size_list(column.type) else 2]
        return pa.Array.from_buffers(
            listed(within.type.index_type),
            len(column),
            buffers,
            offset=column.offset,
            children=[_indices(within)],
        )
    found = column.indices
    found.validate(full=True)
    extremes = pc.min_max(found).as_py()
    if extremes["min"] is not None and not 0 <= extremes["min"] <= extremes["max"] < len(column.dictionary):
        raise pa.ArrowInvalid(
            f"the indices of a dictionary of {len(column.dictionary)} values range from {extremes['min']} to "
            f"{extremes['max']}"
        )
    return found


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


_OFFSETS = {pa.string(): np.int32, pa.large_string(): np.int64}
