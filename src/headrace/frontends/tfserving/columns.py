"""One input's values of many Examples, gathered in pieces, and put in where examples leave them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.absent import FILLED_A_VALUE, pay_for_array
from headrace.errors import InvalidRequest
from headrace.servable import TensorSpec
from headrace.tensors import STRING, Array, held_bytes

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance

_VALUES_A_PIECE = 8192


class Column:
    """Gathers one input's values of all examples that say them."""

    __slots__ = ("_absent", "_allowance", "_filler", "_flat", "_pieces", "_size", "_sizes", "spec")

    def __init__(self, spec: TensorSpec, allowance: Allowance) -> None:
        """Begin with no example.

        Args:
            spec: The input.
            allowance: Gets what is put in for absent values.
        """
        self.spec = spec
        self._allowance = allowance
        self._filler = spec.absent.encode() if isinstance(spec.absent, str) else spec.absent
        # Where something stands for missing values, the spec says how many there are; else the first example.
        known = self._filler is not None and None not in spec.shape
        self._size = math.prod(size or 0 for size in spec.shape) if known else -1
        self._flat: list[Any] = []
        self._sizes: list[int] = []
        self._pieces: list[Array] = []
        self._absent: list[int] = []

    def add(self, index: int, values: Sequence[Any] | None) -> int:
        """Take the values of an example, and say how many they are.

        Args:
            index: The example's number.
            values: Its values; None if it says nothing.

        Raises:
            InvalidRequest: They are of the wrong kind or number.
            TooLarge: With what is put in, they are more than a request may have.
        """
        if values is None:
            self._absent.append(index)
            return 1
        self._take(values)
        if len(self._sizes) * self._size >= _VALUES_A_PIECE:
            self._finish_piece()
        return len(values)

    def _take(self, values: Sequence[Any]) -> None:
        size = len(values)
        if self._size < 0:
            self._size = size
        elif size != self._size and not (self._filler is not None and self._may_be_filled(size)):
            if self._filler is not None:
                row_shape(self.spec, size)  # which says how many there shall be
            raise InvalidRequest(
                f"examples have {sorted([self._size, size])} values; they need the same number",
                field=self.spec.name,
            )
        if size >= _VALUES_A_PIECE and size == self._size and _is_numbers_of_message(values):
            if self._sizes:
                self._finish_piece()
            filled(self.spec, [values[0]])  # refuses numbers where texts belong
            self._pieces.append(np.asarray(values)[None])  # at once: a list of so many numbers takes long
            return
        self._flat.extend(values)
        self._sizes.append(size)

    def _may_be_filled(self, size: int) -> bool:
        return size < self._size and (size == 0 or self.spec.shorter)

    def _finish_piece(self) -> None:
        """Put the values that were gathered into an array: ``[examples, values of each]``."""
        rows, flat = len(self._sizes), filled(self.spec, self._flat)
        if len(flat) == rows * self._size:
            piece = flat.reshape(rows, self._size)
        else:
            filler = np.array([self._filler], STRING if self.spec.dtype == STRING else None)
            dtype = np.result_type(flat, filler) if len(flat) else filler.dtype
            pay_for_array(self.spec, rows * self._size - len(flat), dtype.itemsize, self._allowance)
            piece = np.full((rows, self._size), filler, dtype)
            piece[np.arange(self._size) < np.array(self._sizes)[:, None]] = flat
        self._pieces.append(piece)
        self._flat, self._sizes = [], []

    def array(self, rows: int, shared: Sequence[Any] | None = None) -> Array:
        """The column: ``[rows, *row shape]``.

        Args:
            rows: How many examples there are.
            shared: What stands where examples say nothing; None for nothing.

        Raises:
            InvalidRequest: A value is missing, or of the wrong kind or number.
            TooLarge: What is repeated takes too much.
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
        self._take(said)
        if self._sizes:
            self._finish_piece()
        (row,) = self._pieces
        self._allowance.values(row.size * len(self._absent) // FILLED_A_VALUE, self.spec.name)
        self._allowance.expanded(held_bytes(row) * len(self._absent), self.spec.name)
        whole = np.empty((rows, self._size), np.result_type(row, *own))
        says = np.ones(rows, np.bool_)
        says[self._absent] = False
        whole[~says] = row
        if own:
            whole[says] = np.concatenate(own)
        return whole.reshape(rows, *row_shape(self.spec, self._size))


def _is_numbers_of_message(values: Sequence[Any]) -> bool:
    """Whether values are a message's repeated field of numbers, all of one kind, and not what JSON gave."""
    return not isinstance(values, list | tuple) and not isinstance(values[0], bytes)


def row_shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
    """The shape of a row of so many values; a dimension that may differ is found out.

    Args:
        spec: The input.
        count: How many values each example has.

    Raises:
        InvalidRequest: No shape fits.
    """
    known = math.prod(size for size in spec.shape if size is not None)
    free = spec.shape.count(None)
    if (not free and count != known) or (free and (free > 1 or not known or count % known)):
        raise InvalidRequest(f"expected {spec}, got {count} values in an example", field=spec.name)
    return tuple(count // known if size is None else size for size in spec.shape)


def filled(spec: TensorSpec, flat: list[Any]) -> Array:
    """Values of examples as an array; numbers in the dtype that fits them.

    Args:
        spec: The input that they are for.
        flat: The values.

    Raises:
        InvalidRequest: They are texts where the input takes numbers, or the other way round.
    """
    kinds = {type(value) for value in flat}
    if kinds <= {bytes} if spec.dtype == STRING else bytes not in kinds:
        if not flat or spec.dtype == STRING:
            array = np.empty(len(flat), spec.dtype)
            array[:] = flat
            return array
        return np.array(flat)
    got = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidRequest(f"expected {spec}, got a list of {got}", field=spec.name)
