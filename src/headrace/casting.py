"""Casts of numbers to a declared dtype: a value that does not fit is an error, never another value."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.tensors import BY_DTYPE, Array


class DoesNotFit(ValueError):
    """A value does not fit in a dtype; the message names both."""


def may_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype may be cast to another, if their values fit.

    Integers may become any integers or floats, floats any floats, and booleans anything.
    """
    return (given.kind in "iu" and wanted.kind in "iu") or np.can_cast(given, wanted, "same_kind")


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast numbers; floats may lose digits.

    Args:
        array: The numbers; NaN and infinity stay what they are.
        dtype: What they become.

    Returns:
        The same array, if it has that dtype already.

    Raises:
        DoesNotFit: A value is outside of the range of the dtype, or ``may_cast`` is false.
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
    """The name of a dtype in error messages: that of the Open Inference Protocol, where it has one."""
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
