"""Initial weights, which depend only on the seed, the row and the column.

So a row starts with the same weights in a table of any size, and can be reinitialised when its value expires.
"""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached

_MASK = np.uint64(0xFFFF)


def draw(out: Array, rows: Array, scale: float, seed: int) -> None:
    """Draw initial weights: approximately normal (a sum of four uniform numbers), with mean 0.

    Args:
        out: Output: float32 ``[rows, width]``, which may be a view of the first columns of a wider table.
        rows: Numbers of the rows in ``out`` to draw: int64. Exclude row 0, which stands for no value.
        scale: Standard deviation.
        seed: Random seed.
    """
    # Four numbers below 2**16, each with variance (2**32 - 1) / 12.
    unit = scale / np.sqrt(4 * (2.0**32 - 1) / 12)
    _draw(out, rows, np.float32(unit), np.uint64(seed & (2**64 - 1)))


@cached(nogil=True, forceinline=True)
def _mix(value):  # type: ignore[no-untyped-def]
    """Mix the bits of a number as in SplitMix64 by Steele, Lea and Flood."""
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
