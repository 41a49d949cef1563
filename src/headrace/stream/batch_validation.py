"""Validate record batches fully, down to every offset and text, but shared dictionaries only once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stream.dictionaries import is_listed

_OFFSETS = {pa.string(): np.int32, pa.large_string(): np.int64}


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
