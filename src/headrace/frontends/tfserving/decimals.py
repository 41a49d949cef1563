"""Floats as the shortest decimals: 0.1 in float32 is written 0.1, not 0.10000000149011612."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.base.tensors import Array

Doubles = npt.NDArray[np.float64]

# From the digits that always survive a round trip, to those that always tell two numbers apart.
_DIGITS = {np.dtype(np.float16): range(3, 6), np.dtype(np.float32): range(6, 10)}

# The range in which powers of ten, and integers of as many digits, are exact as doubles. The double nearest
# to a decimal is then the result of a single rounded operation.
_SMALLEST, _LARGEST = 1e-12, 1e15

_SMALL_ARRAY = 64  # below this, array operations cost more than writing each number


def shortest(tensor: Array) -> Doubles:
    """Return doubles that are written as the shortest decimals that are distinct in the tensor's own dtype.

    Args:
        tensor: A float16 or float32 array; doubles are written as shortest decimals anyway.
    """
    if tensor.size < _SMALL_ARRAY:
        return np.array([float(str(number)) for number in tensor.ravel()]).reshape(tensor.shape)
    narrow = tensor.ravel()
    wide = narrow.astype(np.float64)
    size = np.abs(wide)
    # Subnormal numbers have fewer digits; there are few of them.
    ordinary = (size >= max(_SMALLEST, np.finfo(tensor.dtype).smallest_normal)) & (size <= _LARGEST)
    for index in np.flatnonzero(~ordinary & (wide != 0)):
        wide[index] = float(str(narrow[index]))
    pending = np.flatnonzero(ordinary)
    exponents = np.floor(np.log10(size[pending])).astype(np.int64)
    for digits in _DIGITS[tensor.dtype]:
        candidates = _rounded(wide[pending], digits - 1 - exponents)
        # A candidate that rounds up to infinity is another number, and needs more digits.
        with np.errstate(over="ignore"):
            same = candidates.astype(tensor.dtype) == narrow[pending]
        wide[pending[same]] = candidates[same]
        pending, exponents = pending[~same], exponents[~same]
    return wide.reshape(tensor.shape)


def _rounded(numbers: Doubles, places: npt.NDArray[np.int64]) -> Doubles:
    """Round to ``places`` decimal places, negative ones being before the decimal point."""
    powers = np.power(10.0, np.abs(places))
    after = places >= 0
    whole = np.rint(np.where(after, numbers * powers, numbers / powers))
    rounded: Doubles = np.where(after, whole / powers, whole * powers)
    return rounded
