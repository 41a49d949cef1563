"""Tables of weights: one for learning, with its optimizer's state, and a stripped one for serving.

The same kernels read both: the weights of row ``r`` are ``values[r, :width] * scales[r >> shift]``. A
learning table stores a row's optimizer state after its weights, in the same cache lines. A float32 table has
the single scale 1.0, so stripping leaves predictions bit-identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.model_settings import OptimizerKind

NO_SHIFT = 63
"""Shift that maps every row number to 0: one scale for all rows."""

STATE_PER_WEIGHT: dict[OptimizerKind, int] = {
    **{"sgd": 0, "adagrad": 1, "forgetting": 1},
    **{"ftrl": 2, "adam": 2, "lazy_adam": 2},
}
"""Size of an optimizer's state, in numbers per weight."""

ONE_SCALE = np.ones(1, dtype=np.float32)


class Table(NamedTuple):
    """Weights as they are served; a tuple, so that kernels accept it directly.

    Attributes:
        values: ``[rows, width]``: float32, int16 or int8.
        scales: Factor of each group of ``2**shift`` rows: float32 ``[groups]``.
        shift: Base-2 logarithm of the rows in a group; ``NO_SHIFT`` for one group.
    """

    values: Array
    scales: Array
    shift: int

    @classmethod
    def of(cls, weights: Array) -> Table:
        """Return a table of float32 weights ``[rows, width]``."""
        return cls(weights, ONE_SCALE, NO_SHIFT)


@dataclass(slots=True)
class LearningTable:
    """Weights that learn, with their optimizer's state.

    Attributes:
        values: float32 ``[rows, width * (1 + state per weight)]``: a row's weights, then its optimizer's
            state in groups of ``width`` (Adagrad and ``forgetting``: sums of squares; FTRL: z, n; Adam: m,
            v).
        width: Number of weights in a row.
        optimizer: The optimizer that owns the state.
    """

    values: Array
    width: int
    optimizer: OptimizerKind

    @property
    def weights(self) -> Array:
        """The weights without the optimizer's state, as a view ``[rows, width]``."""
        return self.values[:, : self.width]

    def as_table(self) -> Table:
        """Return a table that shares this one's memory, for predictions while learning goes on."""
        return Table.of(self.values)

    def strip(self) -> Table:
        """Return a copy without the optimizer's state, for publication."""
        return Table.of(self.weights.copy())  # not ascontiguousarray, which would not copy for SGD
