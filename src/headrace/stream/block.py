"""A Block, rows of a stream joined for a model into one array per kind, and Features, its arrays' layout.

All tables of a model form one array of rows, table after table, so that a batch's values are one array of row
numbers. Row 0 of that array stands for no value: its weights stay zero and are never learnt. Row 0 within a
table stands for a missing or not admitted value, and is learnt like any other.

The layout depends on the fields' names and settings, never on their order in the stream: context fields come
first, then candidate fields, each group sorted by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
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


class Slice(NamedTuple):
    """The values of one column by which metrics are split.

    Attributes:
        codes: Index of each row's value: int32 ``[rows]``, -1 for none.
        values: The values, as text.
    """

    codes: Array
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for a model: C-contiguous arrays with the same first axis; see ``Features``.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``; 0 for no value. Slots in ``exact_slots`` are 0
            until a vocabulary fills them in from ``keys``.
        dense: Dense and vector fields: float32 ``[rows, dense_width]``; all finite.
        labels: 0 or 1, or with ``views`` the number of clicks: float32 ``[rows]``; empty for rows that are
            only predicted.
        weights: Weight of each row: float32 ``[rows]``; None for 1 each.
        timestamps: Microseconds since 1970: int64 ``[rows]``; None if the stream has none.
        truth: The probability that each label was drawn with: float32 ``[rows]``; None for real rows.
        keys: Keys of the values of exact fields: uint64 ``[rows, len(exact_slots)]``; 0 for no value. A
            field without any value in a row is missing there. None if no field is exact.
        views: Number of views of each row, whole numbers: float32 ``[rows]``; None for 1 each.
        slices: The columns by which metrics are split, by name.
        first_row: The number of the first row in the stream, from 0.
    """

    indices: Array
    dense: Array
    labels: Array
    weights: Array | None = None
    timestamps: Array | None = None
    truth: Array | None = None
    keys: Array | None = None
    views: Array | None = None
    slices: Mapping[str, Slice] = dataclasses.field(default_factory=dict)
    first_row: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> Block:
        """Return the rows ``start:stop``, as views."""
        chosen = {}
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                chosen[one.name] = value[start:stop]
        slices = {name: Slice(cut.codes[start:stop], cut.values) for name, cut in self.slices.items()}
        return dataclasses.replace(self, **chosen, slices=slices, first_row=self.first_row + start)

    def averaged(self) -> Block:
        """Fold views into labels and weights, for learners that do not support views.

        k clicks in n views become the label k / n with weight n: the likelihood, and so the gradient, is
        that of n rows. A row with 0 views has weight 0. A block without views is returned unchanged.
        """
        if self.views is None:
            return self
        rates = self.labels / np.maximum(self.views, np.float32(1))
        weights = self.views if self.weights is None else self.views * self.weights
        return dataclasses.replace(self, labels=rates, weights=weights, views=None)
