"""Casts of numbers to a declared dtype: a value that does not fit raises an error, never wraps."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.tensors import BY_DTYPE, Array


class DoesNotFit(ValueError):
    """A value does not fit in a dtype; the message names both."""


def may_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether numbers of one dtype may be cast to another if their values fit.

    Integers may become any integer or float, floats any float, and booleans anything.
    """
    return (given.kind in "iu" and wanted.kind in "iu") or np.can_cast(given, wanted, "same_kind")


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast numbers to a dtype; a cast to floats may lose precision.

    Args:
        array: The numbers; NaN and infinity are kept.
        dtype: The target dtype.

    Returns:
        The cast array; the same array if it already has that dtype.

    Raises:
        DoesNotFit: A value is outside the range of the dtype, or ``may_cast`` is false.
    """
    if array.dtype == dtype:
        return array
    if not may_cast(array.dtype, dtype):
        raise DoesNotFit(f"{name_of(array.dtype)} cannot become {name_of(dtype)} without losing values")
    if array.dtype.kind in "iu" and dtype.kind in "iu" and array.size:
        _check_integers(array, dtype)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise DoesNotFit(f"{_first_too_large(array, dtype)} does not fit in {name_of(dtype)}") from None


def name_of(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name for error messages: its Open Inference Protocol name if it has one."""
    return BY_DTYPE[dtype].oip if dtype in BY_DTYPE else str(dtype)


def _check_integers(array: Array, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    lowest, highest = int(array.min()), int(array.max())
    if lowest < limits.min or highest > limits.max:
        worst = lowest if lowest < limits.min else highest
        raise DoesNotFit(f"{worst} does not fit in {name_of(dtype)} ({limits.min} … {limits.max})")


def _first_too_large(array: Array, dtype: np.dtype[Any]) -> object:
    with np.errstate(over="ignore"):
        became_infinite = np.isinf(array.astype(dtype)) & np.isfinite(array)
    return array[became_infinite][0]
