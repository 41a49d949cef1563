"""Casts to a declared dtype, of numbers and of inputs' values; what does not fit is an error, never wraps."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_DTYPE, STRING, Array, describe
from headrace.model.data_frames import has_nulls, hides_nulls, is_column
from headrace.model.misfits import Input, is_beyond, misfit, position, ragged, said, wrong_element


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


def typed(spec: Input, value: object, *, exact: bool = False) -> Array:
    """Return the values of an input in its dtype. Their shape is not checked, and no value may be missing.

    Args:
        spec: The input.
        value: An array, or nested lists.
        exact: Whether only lossless widening is done; otherwise any number is cast if its kind fits.

    Raises:
        InvalidRequest: A value is of another kind, or does not fit in the dtype.
    """
    array = _as_strings(spec, value) if spec.dtype == STRING else _as_numbers(spec, value)
    if array.ndim > 1 and isinstance(value, list | tuple) and hides_nulls(value, array.ndim):
        raise _with_missing(spec)
    if array.dtype == spec.dtype:
        return array
    if array.dtype.kind in "US":
        raise _text_for_a_number(spec, value, array)
    return _cast(spec, array, exact)


def _as_numbers(spec: Input, value: object) -> Array:
    if isinstance(value, np.ndarray):
        return _without_mask(spec, value)
    if type(value) is not list and is_column(value) and has_nulls(value):
        raise _with_missing(spec)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ragged(spec, value) from error
    return array if array.dtype != STRING else _of_larger_numbers(spec, array)


def _of_larger_numbers(spec: Input, array: Array) -> Array:
    """Return numbers for which NumPy has no dtype, because some have more than 64 bits."""
    if set(map(type, array.flat)) <= {int, float}:
        for place, value in np.ndenumerate(array):
            if is_beyond(spec.dtype, value):
                raise wrong_element(spec, value, position(place))
        if spec.dtype.kind == "f":
            return array.astype(np.float64)
    raise InvalidRequest(f"expected {spec}, got a mix of types ({array.dtype})", field=spec.name)


def _without_mask(spec: Input, value: Array) -> Array:
    """Return an array as a plain one; the bytes under a mask are other values."""
    if type(value) is np.ndarray:
        return value
    if np.ma.is_masked(value):
        raise _with_missing(spec)
    return np.asarray(value)


def _with_missing(spec: Input) -> InvalidRequest:
    return InvalidRequest(f"expected {spec}, got an array with missing values", field=spec.name)


def _as_strings(spec: Input, value: object) -> Array:
    try:
        given = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
    except ValueError as error:
        raise ragged(spec, value) from error
    array = _without_mask(spec, given)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != STRING:
        raise InvalidRequest(f"expected {spec}, got {describe(array)}; send text or bytes", field=spec.name)
    if any(type(element) is not bytes for element in array.flat):
        rest = array.flat
        try:
            flat = [_as_bytes(spec, element) for element in rest]
        except InvalidRequest:
            place = tuple(map(int, np.unravel_index(rest.index - 1, array.shape)))
            _as_bytes(spec, array[place], position(place))
            raise
        array = np.array([*flat, None], dtype=object)[:-1].reshape(
            array.shape
        )  # the None keeps NumPy from making fixed-size strings
    return array


def _text_for_a_number(spec: Input, value: object, array: Array) -> InvalidRequest:
    """Return the error for the first text among the values; NumPy has made texts of all of them."""
    for place in np.ndindex(array.shape):
        found: Any = value
        for index in place:
            found = found[index]
        if isinstance(found, str | bytes):
            return misfit(spec, found, place)
    return misfit(spec, array.item(0), (0,) * array.ndim)


def _as_bytes(spec: Input, element: object, where: str = "") -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{where}text that is not Unicode: {error.reason}", field=spec.name
            ) from error
    raise InvalidRequest(f"{where}expected text or bytes, got {said(element)}", field=spec.name)


def _cast(spec: Input, array: Array, exact: bool) -> Array:
    wanted = BY_DTYPE[spec.dtype].oip
    if array.dtype not in BY_DTYPE and array.dtype.newbyteorder("=") not in BY_DTYPE:
        raise InvalidRequest(f"expected {wanted}, got a mix of types ({array.dtype})", field=spec.name)
    # If no dtype was declared, integers only have to be in range: [1] arrives as INT64 for UINT8, too.
    if not (np.can_cast(array.dtype, spec.dtype) if exact else may_cast(array.dtype, spec.dtype)):
        raise InvalidRequest(
            f"expected {spec}, got {describe(array)}; convert it before sending, as headrace does not",
            field=spec.name,
        )
    try:
        return cast(array, spec.dtype)
    except DoesNotFit as error:
        raise InvalidRequest(str(error), field=spec.name) from None
