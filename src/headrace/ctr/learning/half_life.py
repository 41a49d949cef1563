"""Decay of sums of squares in models that learn in batches: contributions halve in a fixed number of rows.

This is the forward decay of ``headrace.ctr.learning.forgetting_rate``: later batches have a larger weight,
and rows that are not touched stay unchanged. But the rate is fixed. The measurement there assumes that
weights move row by row; in a batch, a frequent weight moves once for many rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.learning.forgetting_rate import SCALED

_NAME = "half_life.rows"
_SCALED_DOUBLINGS = round(math.log2(SCALED))


class HalfLife:
    """The weight of new squares, which doubles in a fixed number of rows."""

    def __init__(self, rows: int) -> None:
        """Start with weight 1.

        Args:
            rows: Half-life: the number of rows after which an old square counts half of a new one.
        """
        self._half_life = rows
        self._rows = np.zeros(1, np.int64)  # since the weight was 1

    @property
    def weight(self) -> float:
        """Weight of a new square."""
        return float(2.0 ** (int(self._rows[0]) / self._half_life))

    def count(self, rows: int) -> float:
        """Count rows that were learnt from.

        Returns:
            The factor by which to multiply all sums of squares: 1, except on a rare rescaling.
        """
        scalings, left = divmod(int(self._rows[0]) + rows, self._half_life * _SCALED_DOUBLINGS)
        self._rows[0] = left
        return float(SCALED**-scalings)

    def state(self) -> dict[str, Array]:
        """Return the state needed to resume: the object's own array, not a copy."""
        return {_NAME: self._rows}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: The array is missing or has another shape.
        """
        found = state.get(_NAME)
        if found is None or found.shape != self._rows.shape:
            raise ConfigError(
                f"state: {_NAME!r}: expected the number of rows learnt from; resume with the settings that "
                "it was saved with"
            )
        self._rows[:] = found
