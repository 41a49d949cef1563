"""Fresh weights: a function of the seed and the row alone.

So a table's row starts the same in a table of any size, and can be made fresh again when its value is gone.
"""

from __future__ import annotations

import numpy as np

from headrace.compiled import cached
from headrace.tensors import Array

_MASK = np.uint64(0xFFFF)


def draw(out: Array, rows: Array, scale: float, seed: int) -> None:
    """Draw fresh weights: bell-shaped (the sum of four even ones), mean 0.

    Args:
        out: Where they go: float32 ``[rows, width]``, may be a view of the first columns of a wider table.
        rows: The numbers of the rows in ``out`` to draw: int64. Row 0 stands for no value: leave it out.
        scale: The standard deviation.
        seed: What else they depend on.
    """
    # Four numbers below 2**16, each of variance (2**32 - 1) / 12.
    unit = scale / np.sqrt(4 * (2.0**32 - 1) / 12)
    _draw(out, rows, np.float32(unit), np.uint64(seed & (2**64 - 1)))


@cached(nogil=True, forceinline=True)
def _mix(value):  # type: ignore[no-untyped-def]
    """Steele, Lea and Flood's SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@cached(nogil=True)
def _draw(out: Array, rows: Array, unit: np.float32, seed: np.uint64) -> None:
    width = out.shape[1]
    start = _mix(seed + np.uint64(0x9E3779B97F4A7C15))
    for row in rows:
        base = _mix(start + np.uint64(row))
        for column in range(width):
            bits = _mix(base + np.uint64(column) * np.uint64(0x9E3779B97F4A7C15))
            total = np.int64(0)
            for quarter in range(4):
                total += np.int64((bits >> np.uint64(16 * quarter)) & _MASK)
            out[row, column] = np.float32(total - 2 * 65535) * unit
