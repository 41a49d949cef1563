"""The layout of a schema's fields in the arrays that models receive.

All tables of a model form one array of rows, table after table, so that a batch's values are one array of row
numbers. Row 0 of that array stands for no value: its weights stay zero and are never learnt. Row 0 within a
table stands for a missing or not admitted value, and is learnt like any other.

The layout depends on the fields' names and settings, never on their order in the stream: context fields come
first, then candidate fields, each group sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.stream.schema import Field, Schema

MOST_ROWS = 2**32 - 1
"""Maximum number of rows of all tables: row numbers are uint32."""


class ExactColumn(NamedTuple):
    """A column of ``Block.keys``.

    Attributes:
        field: The exact field that it belongs to.
        slot: The column of ``Block.indices`` that its keys fill in.
        table_start: The first row of the field's table.
        first: Whether it is the field's first slot, which marks a missing value.
    """

    field: Field
    slot: int
    table_start: int
    first: bool


@dataclass(frozen=True)
class Features:
    """The layout of a schema's features.

    Slots are the columns of ``Block.indices``: a field has ``Field.values`` adjacent slots.

    Attributes:
        schema: The schema.
        categorical: The categorical fields, in the order of their slots.
        numeric: The dense and vector fields, in the order of their columns in ``Block.dense``.
    """

    schema: Schema
    categorical: tuple[Field, ...]
    numeric: tuple[Field, ...]

    @classmethod
    def of(cls, schema: Schema) -> Features:
        """Lay out a schema's fields.

        Raises:
            ConfigError: There are no features, or too many rows for uint32 row numbers.
        """
        categorical, numeric = schema.of("categorical"), schema.of("dense", "vector")
        if not categorical and not numeric:
            raise ConfigError(
                "schema: no field is categorical, dense or a vector; there is nothing to learn from"
            )
        made = cls(schema, _context_first(categorical), _context_first(numeric))
        if made.rows > MOST_ROWS:
            raise ConfigError(f"schema: the tables have {made.rows} rows; expected at most {MOST_ROWS}")
        return made

    @cached_property
    def tables(self) -> dict[str, tuple[int, int]]:
        """The first row and the number of rows of each table, by its name."""
        found: dict[str, tuple[int, int]] = {}
        first = 1
        for field in sorted(self.categorical, key=lambda one: one.table_name):
            if field.table_name not in found:
                found[field.table_name] = (first, field.buckets)
                first += field.buckets
        return found

    @property
    def rows(self) -> int:
        """Number of rows of all tables, row 0 included."""
        return 1 + sum(rows for _, rows in self.tables.values())

    @cached_property
    def slot_starts(self) -> Array:
        """The first slot of each categorical field, then the number of slots: int64 ``[fields + 1]``."""
        return np.cumsum([0, *(field.values for field in self.categorical)], dtype=np.int64)

    @property
    def slots(self) -> int:
        """Number of columns of ``Block.indices``."""
        return int(self.slot_starts[-1])

    @cached_property
    def table_starts(self) -> Array:
        """The first row of each categorical field's table: int64 ``[fields]``."""
        return np.array([self.tables[field.table_name][0] for field in self.categorical], dtype=np.int64)

    @cached_property
    def mean_pooled(self) -> Array:
        """Whether each categorical field is pooled by its mean: bool ``[fields]``."""
        return np.array([field.pooling == "mean" for field in self.categorical], dtype=np.bool_)

    @property
    def single_valued(self) -> bool:
        """Whether every categorical field has exactly one slot."""
        return self.slots == len(self.categorical)

    @property
    def context_fields(self) -> int:
        """Number of categorical context fields, which come first."""
        return sum(field.context for field in self.categorical)

    @property
    def context_slots(self) -> int:
        """Number of context slots, which come first."""
        return int(self.slot_starts[self.context_fields])

    @property
    def dense_width(self) -> int:
        """Number of columns of ``Block.dense``."""
        return sum(field.size for field in self.numeric)

    @property
    def context_dense(self) -> int:
        """Number of context columns of ``Block.dense``, which come first."""
        return sum(field.size for field in self.numeric if field.context)

    @cached_property
    def exact_columns(self) -> tuple[ExactColumn, ...]:
        """The columns of ``Block.keys``: one for each slot of an exact field."""
        firsts = set(self.slot_starts[:-1].tolist())
        return tuple(
            ExactColumn(field, slot, self.tables[field.table_name][0], slot in firsts)
            for field, slot in self.field_slots()
            if field.keys == "exact"
        )

    @cached_property
    def exact_slots(self) -> tuple[int, ...]:
        """The slots of the columns of ``Block.keys``, in order."""
        return tuple(column.slot for column in self.exact_columns)

    def field_slots(self) -> Iterator[tuple[Field, int]]:
        """Yield each slot with its field."""
        slot = 0
        for field in self.categorical:
            for _ in range(field.values):
                yield field, slot
                slot += 1


def _context_first(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(sorted(fields, key=lambda field: (not field.context, field.name)))
