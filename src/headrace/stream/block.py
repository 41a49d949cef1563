"""A Block: rows of a stream, joined for a model into one array per kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array


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
    """Rows for a model: C-contiguous arrays with the same first axis; see ``headrace.stream.features``.

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
    slices: Mapping[str, Slice] = field(default_factory=dict)
    first_row: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> Block:
        """Return the rows ``start:stop``, as views."""
        chosen = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                chosen[one.name] = value[start:stop]
        slices = {name: Slice(cut.codes[start:stop], cut.values) for name, cut in self.slices.items()}
        return replace(self, **chosen, slices=slices, first_row=self.first_row + start)

    def averaged(self) -> Block:
        """Fold views into labels and weights, for learners that do not support views.

        k clicks in n views become the label k / n with weight n: the likelihood, and so the gradient, is
        that of n rows. A row with 0 views has weight 0. A block without views is returned unchanged.
        """
        if self.views is None:
            return self
        rates = self.labels / np.maximum(self.views, np.float32(1))
        weights = self.views if self.weights is None else self.views * self.weights
        return replace(self, labels=rates, weights=weights, views=None)
