"""Arrays for kernels: aligned to cache lines, and of a single type."""

from __future__ import annotations

import math

import numpy as np

from headrace.base.tensors import Array

LINE_BYTES = 64
"""Size of a cache line in bytes."""

LINE_FLOATS = LINE_BYTES // 4
"""Number of float32 elements in a cache line."""


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Return float32 zeros aligned to a cache line, so that a row of 64 bytes occupies one line, not two.

    NumPy itself requests huge pages for large arrays.
    """
    size = math.prod(shape)
    buffer = np.zeros(size + LINE_FLOATS, np.float32)
    first = (-buffer.ctypes.data % LINE_BYTES) // 4
    return buffer[first : first + size].reshape(shape)


def aligned(count: int) -> Array:
    """Return an uninitialised float32 array aligned to a cache line, so that no vector spans two lines."""
    room = np.empty(count + LINE_FLOATS, np.float32)
    start = -(room.ctypes.data // room.itemsize) % LINE_FLOATS
    return room[start : start + count]


def fixed(array: Array) -> Array:
    """Return a read-only C-contiguous view, so that kernels are compiled for one array type only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
