"""Errors that name the one value of an input that does not fit: its row, the expected and the actual value.

This code runs only for requests that are refused, so correct requests pay nothing for it. Each function looks
at one value, or at the lengths of the rows up to the first wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from headrace.base.errors import InvalidRequest, shown
from headrace.base.tensors import BY_DTYPE

WORDS = {"f": "a number", "b": "true or false", "i": "a whole number", "u": "a whole number", "O": "text"}
"""The expected value in words, by the dtype's kind."""

_LARGEST_TOLD = 2**64


class Input(Protocol):
    """The parts of a ``TensorSpec`` that this module reads; its text describes the input in errors."""

    @property
    def name(self) -> str:
        """The input's name."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The input's dtype."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row."""

    @property
    def shorter(self) -> bool:
        """Whether rows may have fewer values than the shape says."""


def said(value: object) -> str:
    """Return a value as short text: a string in quotes, a number as written, a list only as its kind."""
    names = {
        bool: str(value).lower() if isinstance(value, bool) else "",
        dict: "an object",
        type(None): "null",
    }
    if isinstance(value, str | bytes):
        return shown(value)
    if isinstance(value, float) or (type(value) is int and abs(value) < _LARGEST_TOLD):
        return str(value)
    if isinstance(value, list | tuple | np.ndarray):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool):
        return "a larger number" if value > 0 else "a smaller number"
    return names.get(type(value)) or type(value).__name__


def position(place: Sequence[int]) -> str:
    """Return the position of a value for the front of a message; "" for all rows together.

    Args:
        place: Index of the row, then the indices within the row.
    """
    if not place:
        return ""
    row, *within = place
    if len(within) > 1:
        return f"row {row}, position {within}: "
    return f"row {row}, column {within[0]}: " if within else f"row {row}: "


def position_in(spec: Input, number: int) -> str:
    """Return the position of an element, by its number among all elements of the input.

    Args:
        spec: The input.
        number: Number of the element, from 0, in the order of the rows.
    """
    place: list[int] = []
    for size in reversed(spec.shape):
        if not size:  # the length of the rows is not fixed, so the number does not tell the row
            return f"value {number}: "
        number, index = divmod(number, size)
        place.insert(0, index)
    return position([number, *place])


def misfit(spec: Input, value: object, place: Sequence[int]) -> InvalidRequest:
    """Return the error for a value of another type, or in lists of another depth.

    Args:
        spec: The input.
        value: The value.
        place: Index of its row, then its indices within the row; empty if it stands for all rows.
    """
    if len(place) > len(spec.shape):
        return wrong_element(spec, value, position(place))
    wanted = "a list" if place else "a list of rows"
    way_out = "" if place else "send a list, with one value for each row; "
    return InvalidRequest(
        f"{position(place)}expected {wanted}, got {said(value)}; {way_out}the input is {spec}",
        field=spec.name,
    )


def wrong_element(spec: Input, value: object, where: str, way_out: str | None = None) -> InvalidRequest:
    """Return the error for an element of another type, or beyond the dtype's limits.

    Args:
        spec: The input.
        value: The element.
        where: Its position, as ``position`` returns it.
        way_out: How to send it instead; None to derive it from the element.
    """
    kind, wanted = spec.dtype.kind, described(spec.dtype)
    if type(value) is int or (kind == "f" and isinstance(value, float)):
        wanted += limits(spec.dtype)
    if way_out is None:
        way_out = f"the input is {spec}" if isinstance(value, list | tuple) else remedy(kind, value)
    return InvalidRequest(f"{where}expected {wanted}, {got(value, way_out)}", field=spec.name)


def got(value: object, way_out: str) -> str:
    """Return the end of a message: the value that came, and the way out if there is one."""
    return f"got {said(value)}; {way_out}" if way_out else f"got {said(value)}"


def described(dtype: np.dtype[Any]) -> str:
    """Return the expected value of a dtype in words: ``a number (FP32)``."""
    return f"{WORDS[dtype.kind]} ({BY_DTYPE[dtype].oip})"


def limits(dtype: np.dtype[Any]) -> str:
    """Return the smallest and the largest number of a dtype, as the end of its description; "" for others."""
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return f" from {whole.min} to {whole.max}"
    if dtype.kind == "f":
        number = np.finfo(dtype)
        return f" from {number.min:.5g} to {number.max:.5g}"
    return ""


def is_beyond(dtype: np.dtype[Any], value: object) -> bool:
    """Return whether a number is beyond a dtype's limits."""
    try:
        with np.errstate(over="raise"):
            np.array(value, dtype)
    except ArithmeticError:  # OverflowError of an integer, FloatingPointError of a float
        return True
    return False


def remedy(kind: str, value: object) -> str:
    """Return how to send a value so that it has the kind of a dtype; "" if another value is needed.

    Args:
        kind: The kind of the dtype.
        value: The value that came.
    """
    if kind == "O":
        return "put it in quotes" if isinstance(value, int | float) else ""
    if isinstance(value, bool):
        return f"send {int(value)}"
    if kind == "b":
        return f"send {'true' if value else 'false'}" if isinstance(value, int) and value in (0, 1) else ""
    if not isinstance(value, str) or len(value) > len(str(_LARGEST_TOLD)):
        return ""
    try:
        msgspec.json.decode(value, type=float if kind == "f" else int)
    except (msgspec.DecodeError, UnicodeEncodeError):  # Python's "nan" and "1_000" are no numbers in JSON
        return ""
    return "send it without quotes"


def ragged(spec: Input, rows: object) -> InvalidRequest:
    """Return the error for rows of different lengths.

    Args:
        spec: The input.
        rows: All its rows.
    """
    # Short rows of a click model are filled up next, so nobody reads this error, and nothing is looked for.
    found = rows if spec.shape and not spec.shorter and isinstance(rows, list | tuple) else ()
    if found and all(isinstance(row, list | tuple) for row in found):
        size = len(found[0]) if spec.shape[0] is None else spec.shape[0]
        for index, row in enumerate(found):
            if len(row) != size:
                return _another_length(spec, index, size, len(row))
    return InvalidRequest(
        f"expected {spec}, got a list that is ragged or not as deep; give all rows the same length and depth",
        field=spec.name,
    )


def _another_length(spec: Input, row: int, size: int, length: int) -> InvalidRequest:
    values = "1 value" if size == 1 else f"{size} values"
    if spec.shape[0] is not None:
        return InvalidRequest(f"row {row}: expected {values} ({spec}), got {length}", field=spec.name)
    return InvalidRequest(
        f"row {row}: expected {values} as in row 0 ({spec}), got {length}; give all rows of a request the "
        "same length, or send those of another length in a request of their own",
        field=spec.name,
    )
