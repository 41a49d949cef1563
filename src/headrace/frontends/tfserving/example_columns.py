"""Columns of one input's values, gathered from Examples in pieces, with absent values filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array, held_bytes
from headrace.model.misfits import is_beyond, remedy, wrong_element
from headrace.model.missing_values import FILLED_A_VALUE, pay_for_array
from headrace.model.servable import TensorSpec

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

_VALUES_A_PIECE = 8192
_CONTEXT = -1
"""Stands for the context where an example's index is expected."""


class Column:
    """Gathers one input's values from all examples that have any."""

    __slots__ = ("_absent", "_budget", "_filler", "_flat", "_pieces", "_size", "_sizes", "spec")

    def __init__(self, spec: TensorSpec, budget: RequestBudget) -> None:
        """Start without examples.

        Args:
            spec: The input.
            budget: Charged with the values filled in for absent ones.
        """
        self.spec = spec
        self._budget = budget
        self._filler = spec.absent.encode() if isinstance(spec.absent, str) else spec.absent
        # If missing values have a default, the spec determines their number; else the first example does.
        known = self._filler is not None and None not in spec.shape
        self._size = math.prod(size or 0 for size in spec.shape) if known else -1
        self._flat: list[Any] = []
        self._sizes: list[int] = []
        self._pieces: list[Array] = []
        self._absent: list[int] = []

    def add(self, index: int, values: Sequence[Any] | None) -> int:
        """Take the values of an example, and return their number, or 1 if there are none.

        Args:
            index: Index of the example.
            values: Its values; None if the feature is absent.

        Raises:
            InvalidRequest: The values have the wrong type or number.
            TooLarge: Too many values would be filled in.
        """
        if values is None:
            self._absent.append(index)
            return 1
        self._take(values, index)
        if len(self._sizes) * self._size >= _VALUES_A_PIECE:
            self._finish_piece()
        return len(values)

    def _take(self, values: Sequence[Any], index: int) -> None:
        size = len(values)
        if self._size < 0:
            self._size = size
        elif size != self._size and not (self._filler is not None and self._may_be_filled(size)):
            if self._filler is not None:
                row_shape(self.spec, size)  # raises an error that names the expected shape
            raise InvalidRequest(
                f"examples have {sorted([self._size, size])} values; they need the same number",
                field=self.spec.name,
            )
        if size >= _VALUES_A_PIECE and size == self._size and _is_numbers_of_message(values):
            if self._sizes:
                self._finish_piece()
            if self.spec.dtype == STRING:
                raise _misfit(self.spec, values[0], index)
            self._pieces.append(np.asarray(values)[None])  # directly, as a list of so many numbers is slow
            return
        self._flat.extend(values)
        self._sizes.append(size)

    def _may_be_filled(self, size: int) -> bool:
        return size < self._size and (size == 0 or self.spec.shorter)

    def _finish_piece(self, example: int | None = None) -> None:
        """Convert the gathered values into an array ``[examples, values of each]``.

        Args:
            example: The example that has them, for errors; None if several have.
        """
        rows, flat = len(self._sizes), self._filled(example)
        if len(flat) == rows * self._size:
            piece = flat.reshape(rows, self._size)
        else:
            filler = np.array([self._filler], STRING if self.spec.dtype == STRING else None)
            dtype = np.result_type(flat, filler) if len(flat) else filler.dtype
            pay_for_array(self.spec, rows * self._size - len(flat), dtype.itemsize, self._budget)
            piece = np.full((rows, self._size), filler, dtype)
            piece[np.arange(self._size) < np.array(self._sizes)[:, None]] = flat
        self._pieces.append(piece)
        self._flat, self._sizes = [], []

    def _filled(self, example: int | None) -> Array:
        """Return the gathered values as an array; numbers in the dtype that NumPy infers.

        Args:
            example: As for ``_finish_piece``.

        Raises:
            InvalidRequest: One is a text for a numeric input, a number for a string input, or a number of
                more than 64 bits beyond the input's limits.
        """
        flat, is_text = self._flat, self.spec.dtype == STRING
        kinds = set(map(type, flat))
        if not (kinds <= {bytes} if is_text else bytes not in kinds):
            raise self._misfit(
                next(at for at, value in enumerate(flat) if isinstance(value, bytes) != is_text), example
            )
        if flat and not is_text:
            array = np.array(flat)
            return array if array.dtype != STRING else self._of_larger_numbers(example)
        array = np.empty(len(flat), self.spec.dtype)
        array[:] = flat
        return array

    def _of_larger_numbers(self, example: int | None) -> Array:
        """Return the gathered values as an array; NumPy infers no dtype, as some have more than 64 bits."""
        for number, value in enumerate(self._flat):
            if is_beyond(self.spec.dtype, value):
                raise self._misfit(number, example)
        return np.array(self._flat, np.float64)

    def _misfit(self, number: int, example: int | None) -> InvalidRequest:
        """Return the error for one of the gathered values; see ``_finish_piece``."""
        return _misfit(
            self.spec, self._flat[number], self._example_of(number) if example is None else example
        )

    def _example_of(self, number: int) -> int:
        """Return the index of the example that has one of the gathered values."""
        ends = np.cumsum(self._sizes)
        found = sum(map(len, self._pieces)) + int(np.searchsorted(ends, number, "right"))
        for absent in self._absent:  # ascending; these have no values
            found += absent <= found
        return found

    def array(self, rows: int, shared: Sequence[Any] | None = None) -> Array:
        """Return the column, ``[rows, *row shape]``.

        Args:
            rows: Number of examples.
            shared: Values from the context for examples without their own; None if there are none.

        Raises:
            InvalidRequest: A value is missing, or has the wrong type or number.
            TooLarge: The repeated values take too much.
        """
        said = shared if self._absent else None
        if said is None and self._absent:
            if self._filler is None or self._size < 0:
                raise InvalidRequest(
                    f"example {self._absent[0]} lacks it; each example needs the feature ({self.spec})",
                    field=self.spec.name,
                )
            said = ()
        if self._sizes:
            self._finish_piece()
        own = self._pieces
        if said is None:
            whole = np.concatenate(own) if len(own) > 1 else own[0]
            return whole.reshape(rows, *row_shape(self.spec, self._size))
        self._pieces = []
        self._take(said, _CONTEXT)
        if self._sizes:
            self._finish_piece(_CONTEXT)
        (row,) = self._pieces
        self._budget.values(row.size * len(self._absent) // FILLED_A_VALUE, self.spec.name)
        self._budget.expanded(held_bytes(row) * len(self._absent), self.spec.name)
        whole = np.empty((rows, self._size), np.result_type(row, *own))
        says = np.ones(rows, np.bool_)
        says[self._absent] = False
        whole[~says] = row
        if own:
            whole[says] = np.concatenate(own)
        return whole.reshape(rows, *row_shape(self.spec, self._size))


def _is_numbers_of_message(values: Sequence[Any]) -> bool:
    """Return whether values are a message's repeated numbers, all of one type, rather than from JSON."""
    return not isinstance(values, list | tuple) and not isinstance(values[0], bytes)


def row_shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
    """Return the shape of a row with this number of values; a single free dimension is inferred.

    Args:
        spec: The input.
        count: Number of values in each example.

    Raises:
        InvalidRequest: No shape fits.
    """
    known = math.prod(size for size in spec.shape if size is not None)
    free = spec.shape.count(None)
    if (not free and count != known) or (free and (free > 1 or not known or count % known)):
        raise InvalidRequest(f"expected {spec}, got {count} values in an example", field=spec.name)
    return tuple(count // known if size is None else size for size in spec.shape)


def _misfit(spec: TensorSpec, value: Any, example: int) -> InvalidRequest:
    """Return the error for a value of another kind than the input's, or beyond its limits."""
    where = "context: " if example == _CONTEXT else f"example {example}: "
    if spec.dtype == STRING:
        return wrong_element(spec, value, where, "send it as text")
    if not isinstance(value, bytes):
        return wrong_element(spec, value, where)
    text = value.decode(errors="replace")
    way_out = "send it as a number" if remedy(spec.dtype.kind, text) else ""
    return wrong_element(spec, text, where, way_out)
