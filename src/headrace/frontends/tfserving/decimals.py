"""Floats as few decimals: 0.1 as float32 is printed 0.1, not 0.10000000149011612."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.tensors import Array

Doubles = npt.NDArray[np.float64]

# From the digits that always survive the way there and back, to those that always tell two numbers apart.
_DIGITS = {np.dtype(np.float16): range(3, 6), np.dtype(np.float32): range(6, 10)}

# Where powers of ten, and whole numbers of as many digits, are exact as doubles, so that the double nearest
# to a decimal comes out of one rounded operation.
_SMALLEST, _LARGEST = 1e-12, 1e15

_SMALL_ARRAY = 64  # below it, the fixed cost of array operations is more than printing each number


def shortest(tensor: Array) -> Doubles:
    """The doubles that print as the shortest decimals which the tensor's own dtype tells apart.

    Args:
        tensor: float16 or float32; doubles print as shortest decimals by themselves.
    """
    if tensor.size < _SMALL_ARRAY:
        return np.array([float(str(number)) for number in tensor.ravel()]).reshape(tensor.shape)
    narrow = tensor.ravel()
    wide = narrow.astype(np.float64)
    size = np.abs(wide)
    # Numbers below the smallest normal one have fewer digits; there are few of them.
    ordinary = (size >= max(_SMALLEST, np.finfo(tensor.dtype).smallest_normal)) & (size <= _LARGEST)
    for index in np.flatnonzero(~ordinary & (wide != 0)):
        wide[index] = float(str(narrow[index]))
    pending = np.flatnonzero(ordinary)
    exponents = np.floor(np.log10(size[pending])).astype(np.int64)
    for digits in _DIGITS[tensor.dtype]:
        candidates = _rounded(wide[pending], digits - 1 - exponents)
        with np.errstate(
            over="ignore"
        ):  # what rounds up to infinity is not the same number, and needs more digits
            same = candidates.astype(tensor.dtype) == narrow[pending]
        wide[pending[same]] = candidates[same]
        pending, exponents = pending[~same], exponents[~same]
    return wide.reshape(tensor.shape)


def _rounded(numbers: Doubles, places: npt.NDArray[np.int64]) -> Doubles:
    """Round to so many places after the decimal point; before it, where they are negative."""
    powers = np.power(10.0, np.abs(places))
    after = places >= 0
    whole = np.rint(np.where(after, numbers * powers, numbers / powers))
    rounded: Doubles = np.where(after, whole / powers, whole * powers)
    return rounded
