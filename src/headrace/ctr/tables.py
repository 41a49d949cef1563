"""Tables of weights: a learning one, which carries its optimizer's state, and a stripped one, which serves.

Both are read by the same kernels: the weights of row ``r`` are ``values[r, :width] * scales[r >> shift]``. A
learning table keeps the optimizer's numbers for a row behind its weights, in the same cache lines; a table of
float32 has the one scale 1.0, so that stripping changes no prediction by a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.ctr.settings import OptimizerKind
from headrace.tensors import Array

NO_SHIFT = 63
"""Shifts every row number to 0: one scale for all rows."""

STATE_PER_WEIGHT: dict[OptimizerKind, int] = {
    **{"sgd": 0, "adagrad": 1, "forgetting": 1},
    **{"ftrl": 2, "adam": 2, "lazy_adam": 2},
}
"""How many numbers an optimizer keeps for each weight."""

ONE_SCALE = np.ones(1, dtype=np.float32)


class Table(NamedTuple):
    """Weights as they are served; a tuple, so that kernels take it as it is.

    Attributes:
        values: ``[rows, width]``: float32, int16 or int8.
        scales: What a group of ``2**shift`` rows is multiplied with: float32 ``[groups]``.
        shift: The base-2 logarithm of the rows in a group; ``NO_SHIFT`` for one group.
    """

    values: Array
    scales: Array
    shift: int

    @classmethod
    def of(cls, weights: Array) -> Table:
        """A table of float32 weights ``[rows, width]``."""
        return cls(weights, ONE_SCALE, NO_SHIFT)


@dataclass(slots=True)
class LearningTable:
    """Weights that learn.

    Attributes:
        values: float32 ``[rows, width * (1 + state per weight)]``: a row's weights, then its optimizer's
            numbers, one group of ``width`` after the other (Adagrad: sums of squares, whether they forget or
            not; FTRL: z, n; Adam: m, v).
        width: How many weights a row has.
        optimizer: What owns the numbers behind the weights.
    """

    values: Array
    width: int
    optimizer: OptimizerKind

    @property
    def weights(self) -> Array:
        """The weights alone, as a view ``[rows, width]``."""
        return self.values[:, : self.width]

    def as_table(self) -> Table:
        """What prediction kernels read while it goes on learning."""
        return Table.of(self.values)

    def strip(self) -> Table:
        """A copy without the optimizer's state: what is published."""
        return Table.of(self.weights.copy())  # C-contiguous; with SGD the view is, too, and no copy
