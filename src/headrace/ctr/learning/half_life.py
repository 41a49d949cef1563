"""How models forget that learn in batches: what was added to their sums of squares halves in so many rows.

It is the forward decay of ``headrace.ctr.learning.pace``: what a batch adds counts the more the later it
comes, and rows that are not touched stay as they are. Only the pace is fixed: what is measured there, of
weights that move row by row, says nothing of batches, where what is frequent moves once for many rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.ctr.learning.pace import SCALED
from headrace.errors import ConfigError
from headrace.tensors import Array

_NAME = "half_life.rows"
_SCALED_DOUBLINGS = round(math.log2(SCALED))


class HalfLife:
    """The weight of new squares, which doubles in so many rows."""

    def __init__(self, rows: int) -> None:
        """Start with nothing forgotten.

        Args:
            rows: After how many an old square counts half of a new one.
        """
        self._half_life = rows
        self._rows = np.zeros(1, np.int64)  # since the weight was 1

    @property
    def weight(self) -> float:
        """What a new square counts."""
        return float(2.0 ** (int(self._rows[0]) / self._half_life))

    def count(self, rows: int) -> float:
        """Count rows that were learnt from.

        Returns:
            What all sums of squares are to be multiplied with: 1, but for once in a long time.
        """
        scalings, left = divmod(int(self._rows[0]) + rows, self._half_life * _SCALED_DOUBLINGS)
        self._rows[0] = left
        return float(SCALED**-scalings)

    def state(self) -> dict[str, Array]:
        """Everything to go on from: its own array, not a copy."""
        return {_NAME: self._rows}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: It is another model's.
        """
        found = state.get(_NAME)
        if found is None or found.shape != self._rows.shape:
            raise ConfigError(
                f"state: {_NAME!r}: expected how many rows were learnt from; go on with the settings that it "
                "was saved with"
            )
        self._rows[:] = found
