"""Convert columns of other formats to columns of a stream, and check their values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ConfigError, InvalidRequest, StreamError
from headrace.stream.record_batches import is_listed, plain, plain_type
from headrace.stream.schema import MOST_VIEWS, Field
from headrace.stream.text_or_number import (
    are_numbers,
    are_plain_integers,
    are_plain_numbers,
    are_whole,
    whole_floats,
    without_words,
)

EARLIEST, LATEST = 631_152_000_000_000, 4_133_980_800_000_000
"""The beginning of 1990 and of 2101, in microseconds since 1970."""

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Microseconds per unit."""

UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def fitting_unit(number: int) -> str:
    """Return the unit in which a number is a time from 1990 to 2100; "" if there is none."""
    return next((unit for unit, size in MICROSECONDS.items() if EARLIEST <= number * size <= LATEST), "")


_UTC = pa.timestamp("us", tz="UTC")
_NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_SHOWN_CHARACTERS = 60
_WAYS_OUT = {
    "categorical": 'give it the right keys and buckets in the schema (texts: text = true, keys = "hash")',
    "dense": "correct the row, or make the field categorical or ignored in the schema",
}


def column_of(batch: pa.RecordBatch, field: Field) -> pa.Array:
    """Return the column for a field.

    Raises:
        ConfigError: There is no such column, or there are several.
    """
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        problem = "occurs twice" if field.name in batch.schema.names else "is missing"
        raise ConfigError(
            f"schema: the column {field.name!r} {problem}; there are {', '.join(batch.schema.names[:50])}"
        )
    return batch.column(position)


def stream_type(field: Field, source: pa.DataType, *, counted: bool = False) -> pa.DataType:
    """Return the Arrow type of a field's column in the written stream.

    Args:
        field: The field.
        source: The type of the column that it is converted from; an ignored field keeps it.
        counted: Whether rows have several views, so that the label counts clicks.
    """
    if field.role == "ignored":
        return plain_type(source)
    if field.role == "categorical":
        value = pa.uint32() if field.keys == "bucket" else pa.string() if field.text else pa.int64()
        return pa.list_(value) if field.values > 1 else value
    if field.role == "vector":
        wide = source.value_type if is_listed(source) else source
        return pa.list_(wide if pa.types.is_float16(wide) else pa.float32(), field.size)
    label = pa.int32() if counted else pa.int8()
    return {"label": label, "views": pa.int32(), "timestamp": _UTC}.get(field.role, pa.float32())


def stream_column(
    field: Field, values: pa.Array, first_row: int, *, counted: bool = False, guessed: bool = False
) -> pa.Array:
    """Convert a column for the stream.

    Args:
        field: The field.
        values: The values as read.
        first_row: The number of the first value's row, for errors.
        counted: Whether rows have several views, so that the label counts clicks.
        guessed: Whether the schema was inferred; text cells of dense fields must then be proper numbers.

    Returns:
        The column, of the type ``stream_type``.

    Raises:
        StreamError: A value is invalid for the field.
    """
    try:
        values = plain(values)
    except InvalidRequest as error:
        raise StreamError(error.message, row=first_row, field=field.name) from None
    if field.role == "ignored":
        return values
    column = _Column(field, first_row)
    if field.role == "views" or (field.role == "label" and counted):
        return column.counts(values)
    if field.role == "label":
        return column.labels(values)
    if field.role == "timestamp":
        return column.timestamps(values)
    if field.role == "categorical":
        return column.categories(values, stream_type(field, values.type))
    if field.role == "vector":
        return column.vectors(values, stream_type(field, values.type))
    return column.numbers(values, is_strict=guessed and field.role == "dense")


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's text types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


class _Column:
    """Converts one column, and raises errors that name the field and the row."""

    def __init__(self, field: Field, first_row: int) -> None:
        self._field = field
        self._first_row = first_row

    def labels(self, values: pa.Array) -> pa.Array:
        read = values
        if is_text(values.type):
            # Some exports contain True and False.
            lowered = pc.utf8_lower(values)
            read = pc.if_else(pc.equal(lowered, "false"), "0", values)
            read = pc.if_else(pc.equal(lowered, "true"), "1", read)
        numbers = self._cast(read, pa.float64(), "0 or 1")
        self._refuse(pc.invert(pc.is_in(numbers, pa.array([0.0, 1.0]))), values, "expected 0 or 1")
        return numbers.cast(pa.int8())

    def counts(self, values: pa.Array) -> pa.Array:
        expected = f"a whole number, 0 to {MOST_VIEWS}"
        numbers = self._cast(values, pa.float64(), expected)
        outside = pc.or_(pc.less(numbers, 0.0), pc.greater(numbers, float(MOST_VIEWS)))
        wrong = pc.or_(outside, pc.not_equal(numbers, pc.floor(numbers)))
        self._refuse(pc.fill_null(wrong, True), values, f"expected {expected}")
        return numbers.cast(pa.int32())

    def timestamps(self, values: pa.Array) -> pa.Array:
        unit = UNIT_NAMES[self._field.unit or "us"]
        expected = f"{unit} since 1970, or a time such as 2026-01-31T12:00:00Z"
        self._refuse(values.is_null(), values, f"expected {expected}")
        if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
            made = values.cast(pa.timestamp("us", getattr(values.type, "tz", None)), safe=False).cast(_UTC)
        else:
            kind = _kind_of_time(values) if is_text(values.type) else pa.int64()
            made = self._cast(values, kind, expected)
            if pa.types.is_integer(kind) and self._field.unit:
                return self._in_unit(made, values)
            made = made.cast(_UTC)
        self._refuse_times(made, values)
        return made

    def _in_unit(self, counted: pa.Array, values: pa.Array) -> pa.Array:
        """Convert integers whose unit the schema specifies."""
        unit = self._field.unit
        if unit in ("s", "ms"):
            most = (2**63 - 1) // int(MICROSECONDS[unit])
            beyond = pc.or_(pc.less(counted, -most), pc.greater(counted, most))
            self._refuse(beyond, values, f"expected {UNIT_NAMES[unit]} that fit into int64 as microseconds")
        return counted.cast(pa.timestamp(unit)).cast(_UTC, safe=False)

    def _refuse_times(self, made: pa.Array, values: pa.Array) -> None:
        """Refuse times outside 1990 to 2100, unless the schema specifies their unit."""
        if self._field.unit:
            return
        numbers = made.cast(pa.int64())
        row = pc.index(pc.or_(pc.less(numbers, EARLIEST), pc.greater(numbers, LATEST)), True).as_py()
        if row < 0:
            return
        way_out = "write microseconds, or times such as 2026-01-31T12:00:00Z"
        if unit := fitting_unit(numbers[row].as_py()):
            way_out = f"read as {UNIT_NAMES[unit]} it is in that range: set --timestamp-unit {unit}"
        raise self._error(
            row, f"expected microseconds, or a time, from 1990 to 2100, got {shown(values[row])}; {way_out}"
        )

    def numbers(self, values: pa.Array, *, is_strict: bool = False) -> pa.Array:
        """Convert to float32; if strict, refuse cells such as ``007``, which contradict the inferred type."""
        if is_text(values.type) and not are_plain_numbers(values):
            if is_strict:
                odd = pc.invert(pc.fill_null(are_numbers(without_words(values)), True))
                self._refuse(odd, values, "expected a number, as in earlier rows")
            values = without_words(values)
        numbers = self._cast(values, pa.float64(), "a number")
        # Check the float32 that will be written: a number beyond its range becomes infinite.
        narrow = numbers.cast(pa.float32(), safe=False)
        finite = pc.fill_null(pc.is_finite(narrow), True)
        self._refuse(pc.invert(finite), values, "expected a finite number, or nothing where it is missing")
        if self._field.role == "weight":
            self._refuse(pc.fill_null(pc.less(numbers, 0.0), True), values, "expected a weight of 0 or more")
        elif self._field.role == "truth":
            outside = pc.or_(pc.less(numbers, 0.0), pc.greater(numbers, 1.0))
            self._refuse(pc.fill_null(outside, True), values, "expected a probability, 0 to 1")
        return narrow

    def vectors(self, values: pa.Array, wanted: pa.DataType) -> pa.Array:
        lists, size = self._lists(values), self._field.size
        wrong = pc.fill_null(pc.not_equal(pc.list_value_length(lists), size), False)
        self._refuse(wrong, values, f"expected {size} numbers, or nothing")
        flat = self._cast_flat(lists, pa.float32(), "numbers")
        usable = pc.fill_null(pc.is_finite(flat), False)
        self._refuse(self._rows_with(lists, pc.invert(usable)), values, "expected finite numbers")
        whole, missing = flat.cast(wanted.value_type), lists.is_null()
        if lists.null_count:  # null vectors need some numbers, which are never read
            there = np.zeros((len(lists), size), wanted.value_type.to_pandas_dtype())
            there[~missing.to_numpy(zero_copy_only=False)] = whole.to_numpy().reshape(-1, size)
            whole = pa.array(there.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(
            whole, type=wanted, mask=missing if lists.null_count else None
        )

    def categories(self, values: pa.Array, wanted: pa.DataType) -> pa.Array:
        if pa.types.is_list(wanted):
            return self._several(self._lists(values), wanted.value_type)
        if is_listed(values.type):
            first = [each[0] if each else None for each in values.to_pylist()]
            values = pa.array(first, values.type.value_type)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if is_text(values.type) and pa.types.is_integer(wanted) and not are_plain_integers(values):
            values = whole_floats(without_words(values))
            odd = pc.invert(pc.fill_null(are_whole(values), True))
            self._refuse(odd, values, f"expected {_expected_value(wanted)}")
        made = self._cast(_same_bits(values, wanted), wanted, _expected_value(wanted))
        self._refuse(self._beyond(made), values, self._below_buckets())
        return made

    def _several(self, lists: pa.ListArray, value_type: pa.DataType) -> pa.Array:
        flat = self._cast_flat(lists, value_type, _expected_value(value_type))
        self._refuse(self._rows_with(lists, self._beyond(flat)), lists, self._below_buckets())
        mask = lists.is_null() if lists.null_count else None
        return pa.ListArray.from_arrays(lists.offsets, flat, mask=mask)

    def _lists(self, values: pa.Array) -> pa.ListArray:
        """Return rows of several values as a list array whose offsets start at 0."""
        if is_text(values.type):
            return pc.split_pattern(values.cast(pa.string()), self._field.separator)
        if not is_listed(values.type):
            raise self._error(0, f"expected a list or text, got {values.type}")
        lists = values.cast(pa.list_(values.type.value_type))
        if not (lists.offset or lists.null_count or (len(lists) and lists.offsets[0].as_py())):
            return lists
        # Offsets may start anywhere, and null rows may contain values, which are dropped.
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, lists.flatten(), mask=lists.is_null())

    def _rows_with(self, lists: pa.ListArray, wrong: pa.Array) -> pa.Array:
        rows = pc.list_parent_indices(lists).filter(wrong)
        return pc.is_in(pa.array(range(len(lists)), rows.type), rows)

    def _beyond(self, made: pa.Array) -> pa.Array:
        if self._field.keys != "bucket":
            return pa.repeat(False, len(made))
        return pc.fill_null(pc.greater_equal(made, pa.scalar(self._field.buckets, pa.uint32())), False)

    def _below_buckets(self) -> str:
        return f'expected row numbers of the table, 0 to {self._field.buckets - 1} (keys = "bucket")'

    def _cast_flat(self, lists: pa.ListArray, wanted: pa.DataType, expected: str) -> pa.Array:
        flat = _same_bits(lists.flatten(), wanted)
        try:
            return flat.cast(wanted)
        except _NO_CAST:
            wrong = first_wrong(flat, wanted)
            row = pc.list_parent_indices(lists)[wrong].as_py()
            raise self._error(row, f"expected {expected}, got {shown(flat[wrong])}") from None

    def _cast(self, values: pa.Array, wanted: pa.DataType, expected: str) -> pa.Array:
        try:
            return values.cast(wanted)
        except _NO_CAST:
            row = first_wrong(values, wanted)
            raise self._error(row, f"expected {expected}, got {shown(values[row])}") from None

    def _refuse(self, wrong: pa.Array, values: pa.Array, expected: str) -> None:
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise self._error(row, f"{expected}, got {shown(values[row])}")

    def _error(self, row: int, message: str) -> StreamError:
        way_out = _WAYS_OUT.get(self._field.role, "correct the row, or leave it out")
        return StreamError(f"{message}; {way_out}", row=self._first_row + row, field=self._field.name)


def _expected_value(kind: pa.DataType) -> str:
    return "text" if pa.types.is_string(kind) else "an integer"


def _kind_of_time(texts: pa.Array) -> pa.DataType:
    """Return the type that parses times like the first: int64, or a timestamp without or with a zone."""
    for kind in (pa.int64(), pa.timestamp("us")):
        try:
            texts.slice(0, 1).cast(kind)
        except _NO_CAST:
            continue
        return kind
    return _UTC


def _same_bits(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Reinterpret unsigned integers as signed ones, if wanted: they only identify categories."""
    return values.view(pa.int64()) if pa.types.is_uint64(values.type) and wanted == pa.int64() else values


def first_wrong(values: pa.Array, wanted: pa.DataType) -> int:
    """Return the index of the first value that cannot be cast, found by bisection."""
    start, stop = 0, len(values)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            values.slice(start, middle - start).cast(wanted)
            start = middle
        except _NO_CAST:
            stop = middle
    return start


def shown(value: pa.Scalar) -> str:
    """Return a value's representation for an error, truncated."""
    text = repr(value.as_py()) if value.is_valid else "nothing"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
