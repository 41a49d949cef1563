"""Arrays for kernels: on cache lines, and of one type."""

from __future__ import annotations

import math

import numpy as np

from headrace.tensors import Array

LINE_BYTES = 64
"""A cache line."""

LINE_FLOATS = LINE_BYTES // 4
"""The float32 numbers in it."""


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Zeros, float32, from the start of a cache line on: a row of 64 bytes is then one line and not two.

    NumPy asks for huge pages itself where an array is large.
    """
    size = math.prod(shape)
    buffer = np.zeros(size + LINE_FLOATS, np.float32)
    first = (-buffer.ctypes.data % LINE_BYTES) // 4
    return buffer[first : first + size].reshape(shape)


def aligned(count: int) -> Array:
    """Room for so many float32 numbers, from the start of a cache line on: no vector lies in two lines."""
    room = np.empty(count + LINE_FLOATS, np.float32)
    start = -(room.ctypes.data // room.itemsize) % LINE_FLOATS
    return room[start : start + count]


def fixed(array: Array) -> Array:
    """A C-contiguous view that nobody writes to: kernels are then compiled for one type of array only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
