"""The columns of a feature table: a row of values by key, all rows of one table of one length.

A row is packed: its columns one after the other, numbers little-endian, texts in UTF-8 with NUL behind them
up to their column's room.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NoReturn

import msgspec
import numpy as np

from headrace.archive.windows.window import Window
from headrace.config.checks import whole, wrong
from headrace.errors import ConfigError, InvalidRequest, instead, shown
from headrace.tensors import STRING, Array

LARGEST_ROW_BYTES = 65_536
"""The most bytes of a row."""

TEXT = "text"
"""The dtype of texts; the others are those of NumPy by these names."""

MOST_COLUMNS = 1000
"""The most columns of a table."""

_NUMBERS = {"float32": "<f4", "float64": "<f8", "int32": "<i4", "int64": "<i8"}
DTYPES = (*_NUMBERS, TEXT)
"""What the values of a column may be."""

_LONGEST_NAME_BYTES = 128

Scalar = int | float | str


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One column of a feature table.

    Attributes:
        name: What it is called.
        dtype: What its values are.
        bytes: The room of a text, in bytes of UTF-8; a longer text is an error.
        default: What stands for the value of a key that is not there, or for one that is not given; None for
            0 or the empty text, and then every row must give one.
        window: What it counts, where ``headrace archive feed`` writes it; None where others do.
    """

    name: str
    dtype: Literal["float32", "float64", "int32", "int64", "text"]
    bytes: int = 64
    default: int | float | str | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            ConfigError: Something is not what it can be.
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
        """How its values lie in a row."""
        return stored_dtype(self.dtype, self.bytes)

    @property
    def missing(self) -> Scalar:
        """What stands for a value that is not there."""
        if self.default is not None:
            return self.default
        return "" if self.dtype == TEXT else 0


Columns = tuple[Column, ...]


class ColumnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column as ``archive.toml`` has it, by its name; see ``Column``."""

    dtype: Literal["float32", "float64", "int32", "int64", "text"]
    bytes: int = 64
    default: int | float | str | None = None


def columns_of(settings: Mapping[str, str | ColumnSettings]) -> Columns:
    """Columns as a file of settings says them: a dtype, or a table with more.

    Raises:
        ConfigError: One is not what it can be, or they are too many or too long.
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
    """What columns are, as others are told: by the names of the fields of the message ``Column``."""
    return [{"name": one.name, "dtype": one.dtype, "size_bytes": one.stored.itemsize} for one in columns]


def stored_dtype(dtype: str, room: int) -> np.dtype[Any]:
    """How values lie in a row.

    Args:
        dtype: One of ``DTYPES``.
        room: That of a text, in bytes.
    """
    return np.dtype(f"S{room}" if dtype == TEXT else _NUMBERS[dtype])


def check_columns(columns: Sequence[Column]) -> None:
    """Refuse what cannot be the columns of one table.

    Raises:
        ConfigError: There are none, too many, two of one name, or a row is too long.
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
            f"columns: expected rows of up to {LARGEST_ROW_BYTES} bytes, got {size}; give texts less room"
        )


@functools.lru_cache(maxsize=1024)
def row_dtype(columns: Columns) -> np.dtype[Any]:
    """How a row lies: a structured dtype without gaps, little-endian."""
    return np.dtype([(column.name, column.stored) for column in columns])


@functools.lru_cache(maxsize=1024)
def default_row(columns: Columns) -> Array:
    """The row that stands for a missing one, uint8 ``[row bytes]``; not to be written to."""
    row = np.zeros(1, row_dtype(columns))
    for column in columns:
        row[column.name] = _packed(column, [column.missing], column.name)
    made: Array = row.view(np.uint8)
    made.flags.writeable = False
    return made


def fingerprint(columns: Iterable[Column]) -> str:
    """What tells schemas apart: equal for the same columns in any order."""
    content = msgspec.json.encode(sorted(columns, key=lambda column: column.name))
    return blake2b(content, digest_size=16).hexdigest()


def rows_of(columns: Columns, values: Mapping[str, Sequence[object] | Array]) -> Array:
    """Pack the values of columns into rows.

    Args:
        columns: Those of the table.
        values: By column, each ``[N]``: numbers that its dtype can hold, finite; texts as ``str`` or as
            ``bytes`` of UTF-8. A column with a default may be left out, and so may single values (None).

    Returns:
        Structured ``[N]``, of ``row_dtype``.

    Raises:
        InvalidRequest: A column is unknown or missing, or a value is not what it should be; it is named.
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
                f"expected {count} values, as in the others, got {one}", field=f"columns.{name}"
            )
    rows = np.zeros(count, row_dtype(columns))
    for column in columns:
        if column.name in values:
            rows[column.name] = _packed(column, values[column.name], f"columns.{column.name}")
        elif column.default is None:
            problem = "expected a value a key, got no such column; give it a default or its values"
            raise InvalidRequest(problem, field=f"columns.{column.name}")
        else:
            rows[column.name] = _packed(column, [column.default], f"columns.{column.name}")
    return rows


def renumbered(error: InvalidRequest, first: int) -> InvalidRequest:
    """The error of ``rows_of`` about a part of some values, with the row's number among all.

    Args:
        error: What was raised.
        first: The number of the part's first row.
    """
    said = re.fullmatch(r"(columns\..*)\[(\d+)\]", error.field, re.DOTALL)
    if said is None:
        return error
    return InvalidRequest(error.message[len(error.field) + 2 :], field=f"{said[1]}[{first + int(said[2])}]")


def values_of(columns: Columns, rows: Array) -> dict[str, Array]:
    """Unpack rows.

    Args:
        columns: Those of the table.
        rows: uint8 ``[N, row bytes]``, C-contiguous.

    Returns:
        By column, each ``[N]``: numbers in their dtype, texts as objects, ``bytes`` of UTF-8.
    """
    return {column.name: column_values(column, columns, rows) for column in columns}


def column_values(column: Column, columns: Columns, rows: Array) -> Array:
    """The values of one column of rows, ``[N]``; as ``values_of``."""
    packed = rows.view(row_dtype(columns)).reshape(len(rows))
    values: Array = packed[column.name].astype(STRING if column.dtype == TEXT else column.dtype)
    return values


def _packed(column: Column, given: Sequence[object] | Array, field: str) -> Array:
    """The values of a column as they are stored, ``[N]``."""
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise InvalidRequest(f"expected one value a key, got {list(given.shape)}", field=field)
    if not isinstance(given, np.ndarray) or given.dtype == STRING:
        given = _filled(column, given, field)
    return _texts(column, given, field) if column.dtype == TEXT else _numbers(column, given, field)


def _filled(column: Column, given: Sequence[object] | Array, field: str) -> list[Any]:
    """A list of values, the default where there is none."""
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
        try:
            given = np.array(given, np.int64 if is_whole else np.float64)
        except OverflowError:
            row = next(row for row, value in enumerate(given) if abs(value) >= 2**63)
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


def _texts(column: Column, given: list[Any] | Array, field: str) -> Array:
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "SU":
            raise InvalidRequest(f"expected texts, got {given.dtype}", field=field)
        given = given.tolist()
    try:
        encoded = [value.encode() if isinstance(value, str) else value for value in given]
        b"\n".join(encoded).decode()  # a newline stands within no letter: so each is checked
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
    """Say which value is no text."""
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
    """A value that is none of a column's, in a few words."""
    if value is None:
        return "null"
    if isinstance(value, str | bytes):
        return f"the text {shown(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    return shown(repr(value))[1:-1] if isinstance(value, int | float) else f"a {type(value).__name__}"
