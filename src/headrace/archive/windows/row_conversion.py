"""Converts rows of a stream to slots, buckets, and numbers by measure."""

from __future__ import annotations

import numpy as np

from headrace.archive.model.window_settings import FeedSettings
from headrace.archive.windows.bucket_plan import BucketPlan, Measure
from headrace.archive.windows.counters import Counters
from headrace.archive.windows.kernels import CountedRows
from headrace.base.errors import ConfigError, InvalidRequest, StreamError, listed, needs_extra, shown
from headrace.base.tensors import Array
from headrace.stream.schema import Field

try:
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.stream.column_conversion import is_text, stream_column
    from headrace.stream.record_batches import plain
except ImportError as error:  # as with every optional package
    raise needs_extra("feeding a table", "train", error) from error

_MICROSECONDS = 1_000_000
_LARGEST = 1e280
"""Numbers above this count as missing, like infinity, as sums of them might overflow."""
_NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class RowMaker:
    """Converts record batches to rows.

    Attributes:
        keyless: Number of rows without a key, which only move the clock.
    """

    def __init__(self, plan: BucketPlan, settings: FeedSettings, longest_key: int) -> None:
        """Create a converter.

        Args:
            plan: Plan of what is counted.
            settings: Settings with the names of columns.
            longest_key: Maximum length of a key in bytes of UTF-8.
        """
        self.keyless = 0
        self._plan, self._settings, self._longest_key = plan, settings, longest_key
        self._time = Field(name=settings.time, role="timestamp", unit="us")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, each once."""
        named = [self._settings.key, self._settings.time]
        for one in self._plan.measures:
            named += [name for name in (one.column, one.where[0] if one.where else "") if name]
        return list(dict.fromkeys(named))

    def check(self, names: list[str]) -> None:
        """Check that a stream has the columns that are read.

        Raises:
            ConfigError: A column is missing, or exists twice.
        """
        for name in self.columns:
            if names.count(name) != 1:
                problem = "occurs twice" if name in names else "is missing"
                there = listed(names)
                raise ConfigError(f"the stream's column {shown(name)} {problem}; there are {there}")

    def make(self, batch: pa.RecordBatch, first_row: int, counters: Counters) -> CountedRows:
        """Convert a batch.

        Args:
            batch: Batch with the columns that are read.
            first_row: Number of its first row, for errors.
            counters: Counters that assign the slots.

        Raises:
            StreamError: A key, time or number is invalid.
        """
        times = stream_column(self._time, batch.column(self._settings.time), first_row)
        moments = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if len(moments) and moments.min() < 0:  # rows of a table cannot store such a time
            row = int(np.argmax(moments < 0))
            problem = f"expected a time since 1970, got {moments[row]} µs; correct the row, or leave it out"
            raise StreamError(problem, row=first_row + row, field=self._settings.time)
        buckets = np.floor_divide(moments, self._plan.every_seconds * _MICROSECONDS)
        counted = np.ones((batch.num_rows, len(self._plan.measures)), np.uint8)
        numbers = np.zeros((batch.num_rows, self._plan.sums))
        for place, one in enumerate(self._plan.measures):
            if one.where is not None:
                counted[:, place] = _equal(batch.column(one.where[0]), one.where[1])
            if one.column:
                self._measure(
                    batch, one, first_row, (counted[:, place], numbers[:, self._plan.sum_at[place]])
                )
        return CountedRows(
            self._slots(batch.column(self._settings.key), first_row, counters), buckets, counted, numbers
        )

    def _measure(
        self, batch: pa.RecordBatch, one: Measure, first_row: int, into: tuple[Array, Array]
    ) -> None:
        counted, numbers = into
        values, there = _numbers(one.column, batch.column(one.column), first_row)
        counted &= there
        np.multiply(values, counted, out=numbers)

    def _slots(self, values: pa.Array, first_row: int, counters: Counters) -> Array:
        name = self._settings.key
        keys = _plain(name, values, first_row)
        if not is_text(keys.type) and not pa.types.is_integer(keys.type):
            raise StreamError(
                f"expected texts or whole numbers as keys, got {keys.type}", row=first_row, field=name
            )
        encoded = keys.dictionary_encode()
        texts = encoded.dictionary.cast(pa.large_string())
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        sizes = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        too_long = sizes > self._longest_key
        if too_long.any():
            code = int(np.argmax(too_long))
            row = int(np.flatnonzero(codes == code)[0])
            problem = f"expected a key of up to {self._longest_key} bytes of UTF-8, got {sizes[code]}"
            raise StreamError(problem, row=first_row + row, field=name)
        # The last slot is for rows without a key, which have the code -1.
        slots = np.append(np.full(len(sizes), -1, np.int32), np.int32(-1))
        there = sizes > 0
        slots[:-1][there] = counters.slots_of(texts.filter(pa.array(there)).to_pylist())
        found: Array = slots[codes]
        self.keyless += int((found < 0).sum())
        return found


def _plain(name: str, values: pa.Array, first_row: int) -> pa.Array:
    try:
        return plain(values)
    except InvalidRequest as error:
        raise StreamError(error.message, row=first_row, field=name) from None


def _numbers(name: str, values: pa.Array, first_row: int) -> tuple[Array, Array]:
    """Return a column's numbers, float64, 0 where missing; and a mask of those that are present."""
    values = _plain(name, values, first_row)
    if is_text(values.type):
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    try:
        numbers = values.cast(pa.float64())
    except _NO_CAST as error:
        row, got = _first_non_number(values)
        raise StreamError(f"expected a number, got {got}", row=first_row + row, field=name) from error
    there = numbers.is_valid().to_numpy(zero_copy_only=False)
    found = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
    finite = np.abs(found) <= _LARGEST  # False for NaN
    if not finite.all():
        there, found = there & finite, np.where(finite, found, 0.0)
    return found, there


def _first_non_number(values: pa.Array) -> tuple[int, str]:
    """Return the index of the first value that is not a number, and the value in words."""
    kind = shown(str(values.type))[1:-1]
    for row in range(len(values)):
        try:
            values.slice(row, 1).cast(pa.float64())
        except _NO_CAST:
            got = values[row].as_py()
            return row, shown(got) if isinstance(got, str) else kind
    return 0, kind


def _equal(values: pa.Array, wanted: int | str) -> Array:
    """Return where a column equals a value, as a number or as a text."""
    if pa.types.is_dictionary(values.type):  # decoding it may take much memory
        within = np.append(_equal(values.dictionary, wanted), False)
        picked: Array = within[values.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)]
        return picked
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if isinstance(wanted, str) or is_text(values.type):
        values, wanted = values.cast(pa.large_string()), str(wanted)
    equal: Array = pc.fill_null(pc.equal(values, wanted), False).to_numpy(zero_copy_only=False)
    return equal
