"""The columns of a feature table: one row of values per key, all rows of a table of the same length.

A row is packed: its columns in order, numbers little-endian, texts in UTF-8 padded with NUL to the size of
their column.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NoReturn

import msgspec
import numpy as np

from headrace.archive.model.window_settings import Window
from headrace.base.errors import ConfigError, InvalidRequest, instead, shown
from headrace.base.tensors import STRING, Array
from headrace.config.checks import whole, wrong

LARGEST_ROW_BYTES = 65_536
"""Maximum length of a row in bytes."""

TEXT = "text"
"""The dtype of texts; the other dtypes have their NumPy names."""

MOST_COLUMNS = 1000
"""Maximum number of columns of a table."""

_NUMBERS = {"float32": "<f4", "float64": "<f8", "int32": "<i4", "int64": "<i8"}
DTYPES = (*_NUMBERS, TEXT)
"""Possible dtypes of a column."""

_LONGEST_NAME_BYTES = 128

Scalar = int | float | str


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column of a feature table.

    Attributes:
        name: Name of the column.
        dtype: Dtype of its values.
        bytes: Size of a text in bytes of UTF-8; a longer text is an error.
        default: Value for a missing key, or for an omitted value. None stands for 0 or the empty text, and
            requires a value in every row.
        window: Windowed feature that ``headrace archive feed`` computes; None for a column written otherwise.
    """

    name: str
    dtype: Literal["float32", "float64", "int32", "int64", "text"]
    bytes: int = 64
    default: int | float | str | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: A field is invalid.
        """
        where = f"columns.{self.name}"
        if not 0 < len(self.name.encode()) <= _LONGEST_NAME_BYTES or not self.name.isprintable():
            expected = f"a column's name: 1 to {_LONGEST_NAME_BYTES} bytes of printable text"
            raise ConfigError(f"columns: expected {expected}, got {shown(self.name)}")
        whole(f"{where}.bytes", self.bytes, least=1, most=LARGEST_ROW_BYTES)
        if self.default is not None:
            try:
                _packed(self, [self.default], where)
            except InvalidRequest as error:
                raise ConfigError(f"{where}.default: {error.message.partition(': ')[2]}") from error

    @property
    def stored(self) -> np.dtype[Any]:
        """Dtype of its values in a row."""
        return stored_dtype(self.dtype, self.bytes)

    @property
    def missing(self) -> Scalar:
        """Value for a missing key."""
        if self.default is not None:
            return self.default
        return "" if self.dtype == TEXT else 0


Columns = tuple[Column, ...]


class ColumnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column in ``archive.toml``, under its name; see ``Column``."""

    dtype: Literal["float32", "float64", "int32", "int64", "text"]
    bytes: int = 64
    default: int | float | str | None = None


def columns_of(settings: Mapping[str, str | ColumnSettings]) -> Columns:
    """Return the columns that a settings file defines, each by a dtype or by a table of fields.

    Raises:
        ConfigError: A column is invalid, or there are too many columns or bytes.
    """
    made = []
    for name, given in settings.items():
        fields: dict[str, Any] = {"dtype": given} if isinstance(given, str) else msgspec.structs.asdict(given)
        if fields["dtype"] not in DTYPES:
            raise wrong(
                f"columns.{name}", f"one of {', '.join(DTYPES)}, or a table with a dtype", fields["dtype"]
            )
        made.append(Column(name=name, **fields))
    check_columns(made)
    return tuple(made)


def described(columns: Columns) -> list[dict[str, object]]:
    """Describe columns for clients, with the field names of the message ``Column``."""
    return [{"name": one.name, "dtype": one.dtype, "size_bytes": one.stored.itemsize} for one in columns]


def stored_dtype(dtype: str, room: int) -> np.dtype[Any]:
    """Return the NumPy dtype of values in a row.

    Args:
        dtype: One of ``DTYPES``.
        room: Size of a text in bytes.
    """
    return np.dtype(f"S{room}" if dtype == TEXT else _NUMBERS[dtype])


def check_columns(columns: Sequence[Column]) -> None:
    """Refuse columns that cannot form a table.

    Raises:
        ConfigError: There are none or too many, two have the same name, or a row is too long.
    """
    if not 0 < len(columns) <= MOST_COLUMNS:
        raise ConfigError(f"columns: expected 1 to {MOST_COLUMNS} columns, got {len(columns)}")
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"columns: expected each name once, got {shown(twice)} twice")
    size = sum(column.stored.itemsize for column in columns)
    if size > LARGEST_ROW_BYTES:
        raise ConfigError(
            f"columns: expected rows of up to {LARGEST_ROW_BYTES} bytes, got {size}; reduce the bytes of "
            "text columns"
        )


@functools.lru_cache(maxsize=1024)
def row_dtype(columns: Columns) -> np.dtype[Any]:
    """Return the layout of a row: a structured dtype without padding, little-endian."""
    return np.dtype([(column.name, column.stored) for column in columns])


@functools.lru_cache(maxsize=1024)
def default_row(columns: Columns) -> Array:
    """Return the row for a missing key, uint8 ``[row bytes]``, read-only."""
    row = np.zeros(1, row_dtype(columns))
    for column in columns:
        row[column.name] = _packed(column, [column.missing], column.name)
    made: Array = row.view(np.uint8)
    made.flags.writeable = False
    return made


def fingerprint(columns: Iterable[Column]) -> str:
    """Return a digest of a schema; the order of the columns does not change it."""
    content = msgspec.json.encode(sorted(columns, key=lambda column: column.name))
    return blake2b(content, digest_size=16).hexdigest()


def rows_of(columns: Columns, values: Mapping[str, Sequence[object] | Array]) -> Array:
    """Pack the values of columns into rows.

    Args:
        columns: Columns of the table.
        values: By column, each ``[N]``: finite numbers in the range of its dtype; texts as ``str`` or as
            ``bytes`` of UTF-8. A column with a default may be omitted, or contain None.

    Returns:
        Structured ``[N]``, of ``row_dtype``.

    Raises:
        InvalidRequest: A column is unknown or missing, or a value is invalid; the error names it.
    """
    known = {column.name for column in columns}
    for name in values:
        if name not in known:
            there = instead(name, [column.name for column in columns])
            raise InvalidRequest(f"no such column; {there}", field=f"columns.{shown(name)[1:-1]}")
    counts = {name: len(given) for name, given in values.items()}
    count = next(iter(counts.values()), 0)
    for name, one in counts.items():
        if one != count:
            raise InvalidRequest(
                f"expected {count} values, as in the other columns, got {one}", field=f"columns.{name}"
            )
    rows = np.zeros(count, row_dtype(columns))
    for column in columns:
        if column.name in values:
            rows[column.name] = _packed(column, values[column.name], f"columns.{column.name}")
        elif column.default is None:
            problem = "expected a value per key, got no such column; give the column values or a default"
            raise InvalidRequest(problem, field=f"columns.{column.name}")
        else:
            rows[column.name] = _packed(column, [column.default], f"columns.{column.name}")
    return rows


def renumbered(error: InvalidRequest, first: int) -> InvalidRequest:
    """Return an error of ``rows_of`` for a part of the values, with the row's number among all rows.

    Args:
        error: The error.
        first: Number of the part's first row.
    """
    said = re.fullmatch(r"(columns\..*)\[(\d+)\]", error.field, re.DOTALL)
    if said is None:
        return error
    return InvalidRequest(error.message[len(error.field) + 2 :], field=f"{said[1]}[{first + int(said[2])}]")


def values_of(columns: Columns, rows: Array) -> dict[str, Array]:
    """Unpack rows.

    Args:
        columns: Columns of the table.
        rows: uint8 ``[N, row bytes]``, C-contiguous.

    Returns:
        By column, each ``[N]``: numbers in their dtype, texts as objects, ``bytes`` of UTF-8.
    """
    return {column.name: column_values(column, columns, rows) for column in columns}


def column_values(column: Column, columns: Columns, rows: Array) -> Array:
    """Return the values of one column of packed rows, ``[N]``, as ``values_of`` does."""
    packed = rows.view(row_dtype(columns)).reshape(len(rows))
    values: Array = packed[column.name].astype(STRING if column.dtype == TEXT else column.dtype)
    return values


def _packed(column: Column, given: Sequence[object] | Array, field: str) -> Array:
    """Return the values of a column in their stored dtype, ``[N]``."""
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise InvalidRequest(f"expected one value per key, got {list(given.shape)}", field=field)
    if not isinstance(given, np.ndarray) or given.dtype == STRING:
        given = _filled(column, given, field)
    return _texts(column, given, field) if column.dtype == TEXT else _numbers(column, given, field)


def _filled(column: Column, given: Sequence[object] | Array, field: str) -> list[Any]:
    """Return the values as a list, with the default in place of None."""
    listed = given.tolist() if isinstance(given, np.ndarray) else list(given)
    if None not in listed:
        return listed
    if column.default is None:
        expected = _EXPECTED[column.dtype]
        _refuse(field, listed.index(None), f"expected {expected}, got null; give the column a default")
    return [column.default if value is None else value for value in listed]


_EXPECTED = {
    "float32": "a finite number of float32",
    "float64": "a finite number",
    "int32": "a whole number of int32",
    "int64": "a whole number of int64",
    TEXT: "a text",
}


def _numbers(column: Column, given: list[Any] | Array, field: str) -> Array:
    expected = _EXPECTED[column.dtype]
    is_whole = column.dtype.startswith("int")
    allowed = (int, np.integer) if is_whole else (int, float, np.integer, np.floating)
    if isinstance(given, list):
        for row, value in enumerate(given):
            if not isinstance(value, allowed) or isinstance(value, bool):
                _refuse(field, row, f"expected {expected}, got {_told(value)}")
        widest = np.int64 if is_whole else np.float64
        try:
            given = np.array(given, widest)
        except OverflowError:
            row = next(row for row, value in enumerate(given) if _is_too_large(value, widest))
            _refuse(field, row, f"expected {expected}, got one that is too large")
    if given.dtype.kind not in ("iub" if is_whole else "iubf"):
        raise InvalidRequest(f"expected numbers of {column.dtype}, got {given.dtype}", field=field)
    if is_whole:
        bounds = np.iinfo(column.dtype)
        fits = (given >= bounds.min) & (given <= bounds.max)
        packed = given.astype(column.stored)
    else:
        with np.errstate(over="ignore"):
            packed = given.astype(column.stored)
        fits = np.isfinite(packed)
    if not fits.all():
        row = int(np.argmin(fits))
        _refuse(field, row, f"expected {expected}, got {given[row]}")
    return packed


def _is_too_large(value: object, dtype: type[np.generic]) -> bool:
    try:
        np.array([value], dtype)
    except OverflowError:
        return True
    return False


def _texts(column: Column, given: list[Any] | Array, field: str) -> Array:
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "SU":
            raise InvalidRequest(f"expected texts, got {given.dtype}", field=field)
        given = given.tolist()
    try:
        encoded = [value.encode() if isinstance(value, str) else value for value in given]
        b"\n".join(encoded).decode()  # no UTF-8 sequence spans a newline, so each text is checked
    except (UnicodeError, TypeError):
        _refuse_text(given, field)
    longest = max(map(len, encoded), default=0)
    if longest > column.bytes:
        row = next(row for row, text in enumerate(encoded) if len(text) > column.bytes)
        _refuse(
            field, row, f"expected a text of up to {column.bytes} bytes of UTF-8, got {len(encoded[row])}"
        )
    for row, text in enumerate(encoded):
        if text.endswith(b"\0"):
            _refuse(field, row, "expected a text that does not end with NUL")
    return np.array(encoded, column.stored)


def _refuse_text(given: Iterable[object], field: str) -> NoReturn:
    """Raise an error that names the value that is not text."""
    for row, value in enumerate(given):
        if not isinstance(value, str | bytes):
            _refuse(field, row, f"expected a text, got {_told(value)}")
        try:
            value.encode() if isinstance(value, str) else value.decode()
        except UnicodeError:
            _refuse(field, row, f"expected text in Unicode, as UTF-8, got {shown(value)}")
    raise InvalidRequest("expected texts", field=field)


def _refuse(field: str, row: int, problem: str) -> NoReturn:
    raise InvalidRequest(problem, field=f"{field}[{row}]")


def _told(value: object) -> str:
    """Describe an invalid value in a few words."""
    if value is None:
        return "null"
    if isinstance(value, str | bytes):
        return f"the text {shown(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    return shown(repr(value))[1:-1] if isinstance(value, int | float) else f"a {type(value).__name__}"
