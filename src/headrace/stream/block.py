"""A Block: rows of a stream, joined for a model into one array a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from headrace.tensors import Array


class Slice(NamedTuple):
    """One column's values by which metrics are split.

    Attributes:
        codes: Which value each row has: int32 ``[rows]``, -1 for none.
        values: The values, as text.
    """

    codes: Array
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for a model: C-contiguous arrays with one first axis, described by ``headrace.stream.features``.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``; 0 for no value. Slots in ``exact_slots`` hold 0
            until a vocabulary has filled them in from ``keys``.
        dense: Dense and vector fields: float32 ``[rows, dense_width]``; all finite.
        labels: 0 or 1; with ``views`` how many of them were clicked: float32 ``[rows]``; empty where rows are
            only predicted.
        weights: How much each row counts: float32 ``[rows]``; None for one each.
        timestamps: Microseconds since 1970: int64 ``[rows]``; None if the stream has none.
        truth: The probability that each label was drawn with: float32 ``[rows]``; None for real rows.
        keys: What stands for the values of exact fields: uint64 ``[rows, len(exact_slots)]``, 0 for no value
            (in the field's first slot: a missing one); None if no field is exact.
        views: How many views each row is of, whole numbers: float32 ``[rows]``; None for one each.
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
    slices: Mapping[str, Slice] = field(default_factory=dict)
    first_row: int = 0

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> Block:
        """Some of the rows, as views."""
        chosen = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                chosen[one.name] = value[start:stop]
        slices = {name: Slice(cut.codes[start:stop], cut.values) for name, cut in self.slices.items()}
        return replace(self, **chosen, slices=slices, first_row=self.first_row + start)

    def averaged(self) -> Block:
        """The rows as those learn from them that know one label a row: itself where each is of one view.

        k clicks in n views are a label of k / n that counts n times: the likelihood, and with it the
        gradient, is that of n rows. A row without views counts nothing.
        """
        if self.views is None:
            return self
        rates = self.labels / np.maximum(self.views, np.float32(1))
        weights = self.views if self.weights is None else self.views * self.weights
        return replace(self, labels=rates, weights=weights, views=None)
