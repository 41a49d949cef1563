"""Join record batches into Blocks, with one array per kind of column, and check every value."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.errors import ConfigError, InvalidRequest, StreamError, listed
from headrace.base.tensors import Array
from headrace.stream.block import Block, Features, Slice
from headrace.stream.joined_columns import Columns, Times, column_number, columns_of
from headrace.stream.joining_kernels import join_categorical, join_integers, join_numbers
from headrace.stream.record_batches import plain
from headrace.stream.schema import MOST_VIEWS, Field, Role

MOST_SLICE_VALUES = 1000
"""Maximum number of values of one column that metrics are split by; the rest are combined."""

OTHER = "(other)"
"""The name under which all further values of a slice are combined."""

_NO_KEYS = np.zeros((0, 0), np.uint64)

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


_SINGLE: tuple[Role, ...] = ("label", "views", "weight", "truth", "timestamp")


class _Wrong(NamedTuple):
    """An invalid value: its row within the batch, its field, and the values that are expected."""

    row: int
    field: Field
    expected: str


class Joiner:
    """Joins the record batches of one stream.

    Attributes:
        features: The layout of the Blocks.
    """

    def __init__(self, features: Features, slices: Sequence[str] = ()) -> None:
        """Begin a stream.

        Args:
            features: The layout of the Blocks.
            slices: Columns of the stream, of any role, to split metrics by.
        """
        self.features = features
        self._slices = {name: _SliceCodes() for name in slices}
        self._columns: Columns | None = None
        self._arrow_schema: pa.Schema | None = None
        # Cached, because querying a schema takes longer than making a Block.
        self._shape = (features.slots, features.dense_width, len(features.exact_slots))
        self._roles: dict[str, Field | None] = {role: features.schema.one(role) for role in _SINGLE}

    def check(self, arrow_schema: pa.Schema) -> None:
        """Check that every field has a column of a supported type.

        Raises:
            StreamError: A field has no such column, or metrics cannot be split by a column.
            ConfigError: A column to split metrics by does not exist.
        """
        for name in self._slices:
            if name not in arrow_schema.names:
                raise ConfigError(
                    f"slice: the stream has no column {name!r}; it has {listed(arrow_schema.names) or 'none'}"
                )
            kind = arrow_schema.field(column_number(name, arrow_schema)).type
            with _sliced(name, 0, kind):
                _SliceCodes().fill(pa.nulls(0, kind), np.empty(0, np.int32))
        self._columns = columns_of(self.features, arrow_schema)
        self._arrow_schema = arrow_schema

    def join(self, batch: pa.RecordBatch, first_row: int = 0) -> Block:
        """Join one record batch, which must have been validated; see ``join_all``."""
        return self.join_all((batch,), first_row)

    def join_all(self, batches: Sequence[pa.RecordBatch], first_row: int = 0) -> Block:
        """Join consecutive record batches into one Block.

        Args:
            batches: The batches; they must be fully valid, down to every offset: ``validate(full=True)``.
            first_row: The number of their first row in the stream.

        Raises:
            StreamError: A value is invalid. ``row`` is the first invalid row; all rows before it are valid.
        """
        block = self._empty(sum(batch.num_rows for batch in batches), first_row)
        start = 0
        for batch in batches:
            self._know(batch.schema)
            stop = start + batch.num_rows
            self._fill(batch, block if len(batches) == 1 else block.part(start, stop))
            start = stop
        slices = {
            name: block.slices[name]._replace(values=codes.values) for name, codes in self._slices.items()
        }
        return replace(block, slices=slices) if slices else block

    def _know(self, arrow_schema: pa.Schema) -> None:
        known = self._arrow_schema
        if known is None or (arrow_schema is not known and not arrow_schema.equals(known)):
            self.check(arrow_schema)

    def _empty(self, rows: int, first_row: int) -> Block:
        slots, width, exact = self._shape

        def numbers(role: str) -> Array | None:
            return np.empty(rows, np.float32) if self._roles[role] else None

        return Block(
            indices=np.empty((rows, slots), np.uint32),
            dense=np.empty((rows, width), np.float32),
            labels=np.empty(rows if self._roles["label"] else 0, np.float32),
            views=numbers("views"),
            weights=numbers("weight"),
            truth=numbers("truth"),
            timestamps=np.empty(rows, np.int64) if self._roles["timestamp"] else None,
            keys=np.empty((rows, exact), np.uint64) if exact else None,
            slices={
                name: Slice(np.empty(rows, np.int32), codes.values) for name, codes in self._slices.items()
            },
            first_row=first_row,
        )

    def _fill(self, batch: pa.RecordBatch, block: Block) -> None:
        columns = self._columns
        if columns is None or not len(block):
            return
        with _exported(batch) as array:
            problems = [
                *self._features(array, columns, block),
                *self._labels(array, columns, block),
                *_timestamps(array, columns.times, block, self._roles["timestamp"]),
            ]
        if problems:
            first = min(problems, key=lambda problem: problem.row)
            came = batch.column(column_number(first.field.name, batch.schema))[first.row]
            raise StreamError(
                f"{first.expected}, got {_shown(came)}; correct the program that writes it, or leave such "
                "rows out",
                row=block.first_row + first.row,
                field=first.field.name,
            )
        for name, codes in self._slices.items():
            column = batch.column(column_number(name, batch.schema))
            with _sliced(name, block.first_row, column.type):
                codes.fill(column, block.slices[name].codes)

    def _features(self, array: int, columns: Columns, block: Block) -> Iterator[_Wrong]:
        if len(columns.categorical):
            keys = _NO_KEYS if block.keys is None else block.keys
            row, number = join_categorical(array, columns.categorical, block.indices, keys)
            if row >= 0:
                field = self.features.categorical[number]
                yield _Wrong(row, field, f"expected a bucket from 0 to {field.buckets - 1}, or none")
        if len(columns.dense):
            row, number = join_numbers(array, columns.dense, block.dense)
            if row >= 0:
                yield _Wrong(row, self.features.numeric[number], "expected a finite number, or none")

    def _labels(self, array: int, columns: Columns, block: Block) -> Iterator[_Wrong]:
        for role, expected, column, numbers in (
            ("views", f"expected a whole number, 0 to {MOST_VIEWS}", columns.views, block.views),
            ("label", _label_expected(block), columns.label, block.labels),
            ("weight", "expected a finite number of 0 or more", columns.weight, block.weights),
            ("truth", "expected a probability", columns.truth, block.truth),
        ):
            field = self._roles[role]
            if field is None or numbers is None:
                continue
            row, _ = join_numbers(array, column, numbers.reshape(-1, 1))
            wrong = (numbers != 0) & (numbers != 1) if role == "label" else ~(numbers >= 0)
            if role == "label" and block.views is not None:
                wrong = ~(numbers >= 0) | (numbers > block.views) | (numbers != np.floor(numbers))
            elif role == "views":
                wrong |= (numbers > MOST_VIEWS) | (numbers != np.floor(numbers))
            elif role == "truth":
                wrong |= ~(numbers <= 1)
            if row >= 0:
                wrong[row:] = True  # Rows after it were not read.
            if wrong.any():
                yield _Wrong(int(np.argmax(wrong)), field, expected)


def _label_expected(block: Block) -> str:
    return "expected 0 or 1" if block.views is None else "expected the number of the row's clicked views"


def _timestamps(array: int, times: Times | None, block: Block, field: Field | None) -> Iterator[_Wrong]:
    if times is None or field is None or block.timestamps is None:
        return
    found = block.timestamps
    row = int(join_integers(array, times.child, times.type, found))
    if row >= 0:
        yield _Wrong(row, field, "expected a time")
    if times.microseconds < 1:
        found //= round(1 / times.microseconds)
    elif times.microseconds > 1:
        scale = round(times.microseconds)
        # Null rows hold arbitrary values: the caller reports the earlier problem.
        beyond = (found > 2**62 // scale) | (found < -(2**62) // scale)
        if beyond.any():
            yield _Wrong(int(np.argmax(beyond)), field, "expected a time within 146,000 years of 1970")
        found *= scale


class _SliceCodes:
    """The values of one column by which metrics are split, numbered in order of appearance."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.values: tuple[str, ...] = ()

    def fill(self, column: pa.Array, codes: Array) -> None:
        """Write the code of each row's value."""
        if pa.types.is_nested(column.type):
            column = pa.array([None if value is None else str(value) for value in column.to_pylist()])
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        numbers = np.full(len(encoded.dictionary) + 1, -1, np.int32)
        used = encoded.indices.unique().drop_null()
        for entry, value in zip(used.to_numpy(), _values(plain(encoded.dictionary).take(used)), strict=True):
            numbers[entry] = -1 if value is None else self._code(value)
        # int32, because the indices' own type may not hold the number that stands for null.
        places = encoded.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        codes[:] = numbers[places]

    def _code(self, value: object) -> int:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        code = self._codes.get(text)
        if code is None:
            code = min(len(self._codes), MOST_SLICE_VALUES)
            if code < MOST_SLICE_VALUES:
                self._codes[text] = code
            if code == len(self.values):
                self.values = (*self.values, text if code < MOST_SLICE_VALUES else OTHER)
        return code


def _values(column: pa.Array) -> list[object]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # A time outside of Python's range, which Arrow can format.
        return list(column.cast(pa.string()).to_pylist())


@contextmanager
def _sliced(name: str, row: int, kind: pa.DataType) -> Iterator[None]:
    """Raise a StreamError if metrics cannot be split by a column."""
    try:
        yield
    except InvalidRequest as error:
        raise StreamError(error.message, row=row, field=name) from error
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise StreamError(
            f"metrics cannot be split by a column of type {kind}; convert it to text, or leave it out of "
            "--slice",
            row=row,
            field=name,
        ) from error


@contextmanager
def _exported(batch: pa.RecordBatch) -> Iterator[int]:
    """Yield the address of a batch's ``struct ArrowArray``, valid within the context."""
    _schema, capsule = batch.__arrow_c_array__()
    yield _capsule_pointer(capsule, b"arrow_array")
    del capsule  # It owns the structure, and must live until here.


def _shown(scalar: pa.Scalar, most: int = 60) -> str:
    # Show timestamps as integers: Python's range of times is smaller than that of int64 microseconds.
    value = scalar.value if pa.types.is_timestamp(scalar.type) else scalar.as_py()
    text = "null" if value is None else repr(value)
    return text if len(text) <= most else text[:most] + " …"
