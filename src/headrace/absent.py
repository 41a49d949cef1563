"""Values that a request leaves out: null, rows with fewer values, and one value without its list.

All of this is for requests that do not fit as they came, so that plain ones pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from headrace.errors import InvalidRequest
from headrace.tensors import Array

_VALUE_BYTES = 8
FILLED_A_VALUE = 16
"""An array is filled with so many values in less time than one is decoded."""


class Input(Protocol):
    """What is looked at of an input: a ``TensorSpec``."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row."""

    @property
    def absent(self) -> float | str | None:
        """What stands for a value that is not there."""

    @property
    def shorter(self) -> bool:
        """Whether a row may have fewer values."""


class Expansion(Protocol):
    """What a request may take for what is put in, repeated or spread; ``Expanded`` is one."""

    def values(self, count: int, field: str) -> None:
        """Add values that are about to be made one by one, or raise TooLarge."""

    def expanded(self, size: int, field: str) -> None:
        """Add bytes that are about to be made, or raise TooLarge."""


def complete(spec: Input, rows: object, allowance: Expansion) -> object:
    """Put what stands for absent values into nested lists, and a list around a value that came without.

    Where a row is one value, it may come in a list of its own, as data frames write a column.

    Args:
        spec: The input.
        rows: All its rows, as JSON or a caller in the same process has them.
        allowance: Gets what is put in where rows have fewer values than they shall have.

    Returns:
        The completed rows; ``rows`` itself where nothing was left out.

    Raises:
        InvalidRequest: There is a null, and nothing stands for a value that is not there.
        TooLarge: Filled up, the rows would take too much.
    """
    if not isinstance(rows, list | tuple):
        return rows
    completed = [_completed(spec, row, spec.shape, index, allowance) for index, row in enumerate(rows)]
    return rows if completed == list(rows) else completed


def fitted(spec: Input, array: Array, allowance: Expansion) -> Array:
    """Give each row a list where values came without one or take it away, and fill up rows that are shorter.

    Args:
        spec: The input.
        array: Its rows, of the right dtype.
        allowance: Gets what they take filled up.

    Returns:
        The array; the same one where nothing can be done.

    Raises:
        TooLarge: Filled up, it would take too much.
    """
    if not spec.shape and array.ndim == 2 and array.shape[1] == 1:  # a column, as data frames have it
        return array[:, 0]
    if len(spec.shape) != 1:
        return array
    (size,) = spec.shape
    if array.ndim == 1 and (size == 1 or spec.shorter):
        array = array[:, None]
    if not spec.shorter or size is None or array.ndim != 2 or array.shape[1] >= size:
        return array
    absent = spec.absent.encode() if isinstance(spec.absent, str) else spec.absent
    pay_for_array(spec, len(array) * (size - array.shape[1]), array.dtype.itemsize, allowance)
    whole = np.full((len(array), size), absent, array.dtype)
    whole[:, : array.shape[1]] = array
    return whole


def _completed(spec: Input, value: Any, shape: Sequence[int | None], row: int, allowance: Expansion) -> Any:
    if not shape:
        if not spec.shape and isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if value is None and spec.absent is None:
            raise unexpected_null(spec, row)
        return spec.absent if value is None else value
    size, last = shape[0], len(shape) == 1
    if value is None and size is not None:  # a row without any values
        pay(spec, size, allowance)
        value = [None] * size
    if not isinstance(value, list | tuple):
        # A value without its list, of which there is one in each row, or there may be.
        if not (last and len(spec.shape) == 1 and (size == 1 or spec.shorter)):
            return value
        value = [value]
    completed = [_completed(spec, one, shape[1:], row, allowance) for one in value]
    if last and spec.shorter and size is not None and len(completed) < size:
        pay(spec, size - len(completed), allowance)
        completed += [spec.absent] * (size - len(completed))
    return completed


def unexpected_null(spec: Input, row: int) -> InvalidRequest:
    """The error for a null where nothing stands for a value that is not there."""
    return InvalidRequest(
        f"row {row}: got null, and nothing stands for a missing value of this input; send a value",
        field=spec.name,
    )


def pay_for_array(spec: Input, values: int, value_bytes: int, allowance: Expansion) -> None:
    """Pay for values that an array is about to be filled up with, however little came.

    Args:
        spec: The input.
        values: How many.
        value_bytes: What each takes in the array.
        allowance: What may be put in.

    Raises:
        TooLarge: It is more than a request may have.
    """
    allowance.values(values // FILLED_A_VALUE, spec.name)
    allowance.expanded(values * (value_bytes + _text_bytes(spec)), spec.name)


def pay(spec: Input, values: int, allowance: Expansion) -> None:
    """Pay for values that are about to be put in, however little came."""
    allowance.values(values, spec.name)
    allowance.expanded(values * (_VALUE_BYTES + _text_bytes(spec)), spec.name)


def _text_bytes(spec: Input) -> int:
    return len(spec.absent.encode()) if isinstance(spec.absent, str) else 0
