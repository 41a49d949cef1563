"""Values that a request omits: nulls, short rows, and scalars sent without their enclosing list.

This code runs only for requests that do not fit as sent, so plain requests pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

_VALUE_BYTES = 8
FILLED_A_VALUE = 16
"""An array is filled with this many values in less time than one value takes to decode."""


class Input(Protocol):
    """The parts of a ``TensorSpec`` that this module reads."""

    @property
    def name(self) -> str:
        """The input's name."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype; object stands for strings."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row."""

    @property
    def absent(self) -> float | str | None:
        """The value that replaces a missing one; None if values must not be missing."""

    @property
    def shorter(self) -> bool:
        """Whether rows may have fewer values than the shape says."""


class Expansion(Protocol):
    """Limit on the values and bytes that one request's filling, repeating and spreading may add."""

    def values(self, count: int, field: str) -> None:
        """Charge for values that are about to be made one by one, or raise TooLarge."""

    def expanded(self, size: int, field: str) -> None:
        """Charge for bytes that are about to be allocated, or raise TooLarge."""


def complete(spec: Input, rows: object, budget: Expansion) -> object:
    """Replace missing values in nested lists, and wrap bare scalars in a list.

    If a row is a single value, the value may come in a list of its own, as data frames write a column.

    Args:
        spec: The input.
        rows: All rows of the input, as JSON or an in-process caller passes them.
        budget: Charged for the values added to short rows.

    Returns:
        The completed rows; ``rows`` itself if nothing was missing.

    Raises:
        InvalidRequest: A value is null, and the input has no replacement for missing values.
        TooLarge: The completed rows would exceed the budget.
    """
    if not isinstance(rows, list | tuple):
        return rows
    plain = [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]
    completed = [_completed(spec, row, spec.shape, index, budget) for index, row in enumerate(plain)]
    return rows if completed == plain else completed


def fitted(spec: Input, array: Array, budget: Expansion) -> Array:
    """Add or remove the value axis where the shape needs it, and fill up short rows.

    Args:
        spec: The input.
        array: The rows, of the right dtype.
        budget: Charged for the filled array.

    Returns:
        The fitted array; the same array if nothing can be done.

    Raises:
        TooLarge: The filled array would exceed the budget.
    """
    if not spec.shape and array.ndim == 2 and array.shape[1] == 1:  # a column, as data frames write it
        return array[:, 0]
    if len(spec.shape) != 1:
        return array
    (size,) = spec.shape
    if array.ndim == 1 and (size == 1 or spec.shorter):
        array = array[:, None]
    if not spec.shorter or size is None or array.ndim != 2 or array.shape[1] >= size:
        return array
    absent = spec.absent.encode() if isinstance(spec.absent, str) else spec.absent
    pay_for_array(spec, len(array) * (size - array.shape[1]), array.dtype.itemsize, budget)
    whole = np.full((len(array), size), absent, array.dtype)
    whole[:, : array.shape[1]] = array
    return whole


def _completed(spec: Input, value: Any, shape: Sequence[int | None], row: int, budget: Expansion) -> Any:
    if not shape:
        if not spec.shape and isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if value is None and spec.absent is None:
            raise unexpected_null(spec, row)
        return spec.absent if value is None else value
    size, last = shape[0], len(shape) == 1
    if value is None and size is not None:  # a row without any values
        pay(spec, size, budget)
        value = [None] * size
    if not isinstance(value, list | tuple):
        # A bare scalar is accepted only if a row has one value, or may be shorter than its shape.
        if not (last and len(spec.shape) == 1 and (size == 1 or spec.shorter)):
            return value
        value = [value]
    completed = [_completed(spec, one, shape[1:], row, budget) for one in value]
    if last and spec.shorter and size is not None and len(completed) < size:
        pay(spec, size - len(completed), budget)
        completed += [spec.absent] * (size - len(completed))
    return completed


def unexpected_null(spec: Input, row: int) -> InvalidRequest:
    """Return the error for a null in an input that has no replacement for missing values."""
    others = (
        "; TensorFlow Serving's JSON, gRPC and binary data may have NaN" if spec.dtype.kind == "f" else ""
    )
    return InvalidRequest(
        f"row {row}: got null, but this input has no replacement for missing values; send a value{others}",
        field=spec.name,
    )


def pay_for_array(spec: Input, values: int, value_bytes: int, budget: Expansion) -> None:
    """Charge for values that an array is about to be filled with.

    Args:
        spec: The input.
        values: Number of values.
        value_bytes: Size of one value in the array.
        budget: The request's budget.

    Raises:
        TooLarge: The request would exceed the budget.
    """
    budget.values(values // FILLED_A_VALUE, spec.name)
    budget.expanded(values * (value_bytes + _text_bytes(spec)), spec.name)


def pay(spec: Input, values: int, budget: Expansion) -> None:
    """Charge for values that are about to be added to lists."""
    budget.values(values, spec.name)
    budget.expanded(values * (_VALUE_BYTES + _text_bytes(spec)), spec.name)


def _text_bytes(spec: Input) -> int:
    return len(spec.absent.encode()) if isinstance(spec.absent, str) else 0
