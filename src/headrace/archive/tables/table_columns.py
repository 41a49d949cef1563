"""Converts columns of a file to columns of a feature table, with errors that name rows."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive.model.columns import LARGEST_ROW_BYTES, TEXT, Column
from headrace.base.errors import InvalidRequest, shown
from headrace.base.tensors import Array
from headrace.stream.column_conversion import EARLIEST, LATEST, UNIT_NAMES, fitting_unit
from headrace.stream.column_conversion import is_text as is_plain_text
from headrace.stream.record_batches import is_listed, plain
from headrace.stream.text_or_number import Look, whole_floats, without_words

_LEAST_TEXT_BYTES = 16
_EARLIEST, _LATEST = EARLIEST // 1000, LATEST // 1000  # in milliseconds
_NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a text type, with a dictionary or without."""
    return is_plain_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_whole(kind: pa.DataType) -> bool:
    """Return whether a type is an integer type, with a dictionary or without."""
    return bool(pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind))


def is_time(kind: pa.DataType) -> bool:
    """Return whether a type is a time type; times become milliseconds of Unix time."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def keys_of(name: str, values: pa.Array, first_row: int, longest: int) -> list[str]:
    """Return the keys of a batch.

    Args:
        name: Name of the column.
        values: Texts or whole numbers, which are converted to texts.
        first_row: Number of the first row.
        longest: Maximum length of a key in bytes.

    Raises:
        InvalidRequest: A key is null, empty or too long, or the column is not one of texts or whole numbers.
    """
    values = plain(values, f"column {name!r}")
    if not is_text(values.type) and not is_whole(values.type):
        raise InvalidRequest(
            f"expected texts or whole numbers as keys, got {values.type}", field=f"column {name!r}"
        )
    sizes = pc.binary_length(values.cast(pa.large_string()))
    wrong = pc.fill_null(pc.or_(pc.equal(sizes, 0), pc.greater(sizes, longest)), True)
    if pc.any(wrong).as_py():
        row = wrong.index(True).as_py()
        size = sizes[row].as_py()
        got = "null" if size is None else f"{size} bytes"
        refuse(name, first_row + row, f"expected a key of 1 to {longest} bytes of UTF-8, got {got}")
    keys: list[str] = values.cast(pa.large_string()).to_pylist()
    return keys


def values_of(column: Column, values: pa.Array, first_row: int) -> Array:
    """Return the values of a column as ``rows_of`` takes them, ``[N]``, with nulls replaced by the default.

    Args:
        column: Target column.
        values: Values as read.
        first_row: Number of the first row.

    Raises:
        InvalidRequest: A value does not fit the column.
    """
    values = _as_read(plain(values, f"column {column.name!r}"), column.dtype)
    made = _texts(column, values, first_row) if column.dtype == TEXT else _numbers(column, values, first_row)
    if made.null_count:
        if column.default is None:
            row = made.is_null().index(True).as_py()
            refuse(column.name, first_row + row, "expected a value, got null; give the column a default")
        default = column.default.encode() if isinstance(column.default, str) else column.default
        made = pc.fill_null(made, pa.scalar(default, made.type))
    given: Array = made.to_numpy(zero_copy_only=False)
    return given


def _as_read(values: pa.Array, dtype: str) -> pa.Array:
    """Convert values that stand for missing ones to null, and times and booleans to whole numbers."""
    if is_time(values.type):
        return values.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8())
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if is_text(values.type) and dtype != TEXT:
        return whole_floats(without_words(values)) if dtype.startswith("int") else without_words(values)
    return values


def _numbers(column: Column, values: pa.Array, first_row: int) -> pa.Array:
    kind = pa.type_for_alias(column.dtype)
    expected = "a whole number" if column.dtype.startswith("int") else "a finite number"
    try:
        made = (
            values.cast(kind)
            if pa.types.is_integer(kind)
            else values.cast(pa.float64()).cast(kind, safe=False)
        )
    except _NO_CAST:
        _refuse_first(column.name, values, kind, first_row, f"expected {expected} of {column.dtype}")
    if pa.types.is_floating(kind):
        finite = pc.fill_null(pc.is_finite(made), True)
        if not pc.all(finite).as_py():
            row = finite.index(False).as_py()
            refuse(column.name, first_row + row, f"expected {expected} of {column.dtype}, got {values[row]}")
    return made


def _texts(column: Column, values: pa.Array, first_row: int) -> pa.Array:
    if not is_text(values.type) and not is_whole(values.type):
        problem = f"expected texts, got {values.type}"
        raise InvalidRequest(problem, field=f"column {column.name!r}")
    made = values.cast(pa.large_string())
    too_long = pc.fill_null(pc.greater(pc.binary_length(made), column.bytes), False)
    if pc.any(too_long).as_py():
        row = too_long.index(True).as_py()
        size = len(made[row].as_py().encode())
        problem = f"expected a text of up to {column.bytes} bytes of UTF-8, got {size}; give the column more"
        refuse(column.name, first_row + row, problem)
    return made.cast(pa.large_binary())


def _refuse_first(name: str, values: pa.Array, kind: pa.DataType, first_row: int, expected: str) -> NoReturn:
    """Raise an error for the first value that cannot be cast; Arrow does not name it, so try each."""
    for row in range(len(values)):
        try:
            values.slice(row, 1).cast(kind)
        except pa.ArrowNotImplementedError:
            raise InvalidRequest(f"{expected}, got {values.type}", field=f"column {name!r}") from None
        except _NO_CAST:
            refuse(name, first_row + row, f"{expected}, got {_shown(values[row])}")
    raise InvalidRequest(f"{expected}, got {values.type}", field=f"column {name!r}")


def written_of(name: str, values: pa.Array, first_row: int) -> Array:
    """Return when the rows of a batch were written: milliseconds of Unix time, uint64 ``[N]``.

    Args:
        name: Name of the column.
        values: Times, or milliseconds of Unix time; texts may hold such numbers, or times as in
            ``2026-01-31T12:00:00Z``.
        first_row: Number of the first row.

    Raises:
        InvalidRequest: A value is missing, or outside 1990 to 2100, perhaps in another unit.
    """
    values, expected = plain(values), "milliseconds of Unix time, or times such as 2026-01-31T12:00:00Z"
    if not (is_text(values.type) or is_whole(values.type) or is_time(values.type)):
        raise InvalidRequest(f"expected {expected}, got {values.type}", field=f"column {name!r}")
    kind = _kind_of_time(values)
    try:
        made = values.cast(kind)
    except _NO_CAST:
        _refuse_first(name, values, kind, first_row, f"expected {expected}")
    if pa.types.is_timestamp(kind):
        made = made.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    wrong = pc.fill_null(pc.or_(pc.less(made, _EARLIEST), pc.greater(made, _LATEST)), True)
    if pc.any(wrong).as_py():
        row = wrong.index(True).as_py()
        problem = f"expected a time from 1990 to 2100, got {_shown(values[row])}"
        if pa.types.is_integer(kind) and (unit := fitting_unit(made[row].as_py() or 0)):
            problem += f"; it would be a valid time in {UNIT_NAMES[unit]}: write milliseconds"
        refuse(name, first_row + row, problem)
    times: Array = made.to_numpy(zero_copy_only=False)
    return times.astype(np.uint64)


def _kind_of_time(values: pa.Array) -> pa.DataType:
    """Return the type to read times as; for texts, it follows from the first one."""
    if is_whole(values.type):
        return pa.int64()
    if not is_text(values.type):
        return pa.timestamp(getattr(values.type, "unit", "ms"), getattr(values.type, "tz", None))
    there = values.drop_null()[:1]
    for kind in (pa.int64(), pa.timestamp("ns", tz="UTC")):
        with suppress(*_NO_CAST):
            there.cast(kind)
            return kind
    return pa.timestamp("ns")


def vectors_of(name: str, values: pa.Array, dimension: int, first_row: int) -> Array:
    """Return the vectors of a batch, float32 ``[N, dimension]``.

    Args:
        name: Name of the column.
        values: Lists of numbers.
        dimension: Length of each list.
        first_row: Number of the first row.

    Raises:
        InvalidRequest: A vector is missing or has another length, or a number is missing or not finite.
    """
    if not is_listed(values.type):
        raise InvalidRequest(f"expected lists of numbers, got {values.type}", field=f"column {name!r}")
    lengths = pc.list_value_length(values)
    wrong = pc.fill_null(pc.not_equal(lengths, dimension), True)
    if pc.any(wrong).as_py():
        row = wrong.index(True).as_py()
        got = "null" if not values[row].is_valid else f"{lengths[row]}"
        refuse(name, first_row + row, f"expected {dimension} numbers, got {got}")
    try:
        flat = values.flatten().cast(pa.float64())
    except _NO_CAST:
        kind = values.type.value_type
        raise InvalidRequest(
            f"expected lists of numbers, got lists of {kind}", field=f"column {name!r}"
        ) from None
    with np.errstate(over="ignore"):
        vectors = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, dimension)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        refuse(name, first_row + int(np.argmin(finite)), "expected finite numbers of float32")
    made: Array = vectors
    return made


class Guess:
    """A guess at the table column for a column of a file, based on all its values.

    Attributes:
        rows: Number of values.
        nulls: Number of missing values.
    """

    def __init__(self, field: pa.Field, *, are_cells: bool) -> None:
        """Start without values.

        Args:
            field: The column.
            are_cells: Whether texts may be numbers: in a text file, if the table has no texts there.
        """
        self.name, self._type, self._are_cells = field.name, field.type, are_cells
        self._texts = Look()
        self._longest = self.nulls = self.rows = 0

    def look(self, values: pa.Array) -> None:
        """Take a batch of values into account."""
        values = plain(values)
        self.rows += len(values)
        self.nulls += values.null_count
        if pa.types.is_floating(values.type):
            self.nulls += pc.sum(pc.is_nan(values)).as_py() or 0
        if not is_text(values.type) or not len(values):
            return
        self._longest = max(self._longest, pc.max(pc.binary_length(values)).as_py() or 0)
        if self._are_cells:
            self._texts.at(values)

    @property
    def said(self) -> str:
        """Possibly unexpected properties of the guess, as text; "" for none."""
        return self._texts.said if self._are_cells else ""

    def column(self) -> Column | None:
        """Return the guessed column; None for a type that no column can have.

        Raises:
            InvalidRequest: A text is too long for any column.
        """
        dtype = self._dtype()
        if dtype is None:
            return None
        if dtype != TEXT:
            self.nulls += self._texts.missing
            default = 0 if self.nulls else None
            return Column(name=self.name, dtype=dtype, default=default)  # type: ignore[arg-type]
        room = max(_LEAST_TEXT_BYTES, 1 << max(0, self._longest - 1).bit_length())
        if self._longest > LARGEST_ROW_BYTES:
            problem = f"expected texts of up to {LARGEST_ROW_BYTES} bytes, got {self._longest}; leave it out"
            raise InvalidRequest(problem, field=f"column {self.name!r}")
        return Column(
            name=self.name,
            dtype="text",
            bytes=min(room, LARGEST_ROW_BYTES),
            default="" if self.nulls else None,
        )

    def _dtype(self) -> str | None:
        kind = self._type.value_type if pa.types.is_dictionary(self._type) else self._type
        if is_text(kind):
            return {"whole": "int64", "numbers": "float64", "text": TEXT}[self._texts.kind]
        if (
            pa.types.is_boolean(kind)
            or (pa.types.is_integer(kind) and kind.bit_width <= 16)
            or kind == pa.int32()
        ):
            return "int32"
        if pa.types.is_integer(kind) or is_time(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0):
            return "int64"
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return "float32" if pa.types.is_floating(kind) and kind.bit_width <= 32 else "float64"
        return None


def refuse(name: str, row: int, problem: str) -> NoReturn:
    """Raise an error that names a value.

    Args:
        name: Name of the column.
        row: Number of the row, from 1.
        problem: Text with the expected and the actual value.
    """
    raise InvalidRequest(problem, field=f"row {row}, column {name!r}")


def _shown(value: pa.Scalar) -> str:
    text = value.as_py()
    return shown(text) if isinstance(text, str) else str(text)
