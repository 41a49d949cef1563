"""Inspect a stream: its schema, size and values, read as the learner reads it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from headrace.base.errors import StreamError
from headrace.base.tensors import Array
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import Joiner
from headrace.stream.block_reader import laid_out
from headrace.stream.schema import Field, Schema

FIRST_VALUES = 3
"""Number of values shown per column."""

_TEXT_CHARACTERS = 28
_KEY_CELLS = 2**20
_MOST_CELLS = 2**24
_SURE = 1e-7  # The metrics of learning clip probabilities in the same way.


@dataclass(slots=True)
class FieldReport:
    """Statistics of one field's values.

    Attributes:
        field: The field.
        arrow_type: The type of its column.
        first_values: Its first values, as text.
        missing: Number of rows that the learner reads as missing.
        distinct: Approximate number of distinct values; None unless it is categorical.
        minimum: Minimum of the numbers; None unless it is dense or a vector. Missing ones count as 0, as for
            the learner.
        mean: Mean of the numbers.
        maximum: Maximum of the numbers.
    """

    field: Field
    arrow_type: str
    first_values: list[str]
    missing: int = 0
    distinct: int | None = None
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None


@dataclass(slots=True)
class Inspection:
    """The result of inspecting a stream.

    Attributes:
        schema: Its schema; None if the stream ended before it.
        rows: Number of rows in the record batches before the first error.
        bytes: Number of bytes read.
        batches: Number of record batches.
        fields: Statistics of its fields.
        views: Total number of views; None if each row is one view.
        click_rate: Share of views that were clicked; None without labels.
        base_logloss: Logloss of always predicting the click rate.
        optimal_logloss: Expected logloss of the best model; None unless the stream has the truth.
        realised_logloss: Logloss of the truth on these labels; None unless the stream has both.
        first_time: The earliest timestamp in microseconds since 1970; None if there is none.
        last_time: The latest one.
        problem: The error that ended reading; None if the stream was read to its end.
    """

    schema: Schema | None = None
    rows: int = 0
    bytes: int = 0
    batches: int = 0
    fields: list[FieldReport] = field(default_factory=list)
    views: int | None = None
    click_rate: float | None = None
    base_logloss: float | None = None
    optimal_logloss: float | None = None
    realised_logloss: float | None = None
    first_time: int | None = None
    last_time: int | None = None
    problem: StreamError | None = None


def inspect(file: BinaryIO, schema: Schema | None, progress: Callable[[int], None]) -> Inspection:
    """Read a stream to its end, or to its first error.

    Args:
        file: The stream; preferably unbuffered.
        schema: The Schema of its columns; None for the stream's own.
        progress: Called with the number of rows so far.

    Returns:
        The statistics; ``problem`` is the error that the learner would raise.

    Raises:
        ConfigError: The given schema is wrong.
    """
    parser = StreamParser(schema)
    found = Inspection()
    tally: _Tally | None = None
    try:
        while count := file.readinto(parser.room()):  # type: ignore[attr-defined]  # Binary files have it.
            batch = parser.filled(count)
            if tally is None and parser.arrow_schema is not None:
                found.schema = parser.schema
                features = laid_out(parser.schema, is_given=schema is not None)
                tally = _Tally(features, parser.arrow_schema)
            if batch is not None and tally is not None:
                tally.add(batch, found.rows)
                found.rows += batch.num_rows
                found.batches += 1
                progress(found.rows)
        parser.finish()
    except StreamError as error:
        found.problem = error
    found.bytes = parser.position.bytes
    if tally is not None:
        tally.report(found)
    return found


class _Tally:
    """Statistics that are updated with each batch."""

    def __init__(self, features: Features, arrow_schema: pa.Schema) -> None:
        self._features, schema = features, features.schema
        self._joiner = Joiner(features)
        self._joiner.check(arrow_schema)
        names = [one for one in arrow_schema.names if one in schema.by_name]
        self.fields = {
            name: FieldReport(schema.by_name[name], str(arrow_schema.field(name).type), []) for name in names
        }
        self._seen = {one.name: np.zeros(_cells(one), np.bool_) for one in self._features.categorical}
        self._exact = {slot: column for column, slot in enumerate(self._features.exact_slots)}
        self._sums = {one.name: 0.0 for one in self._features.numeric}
        self._clicks = self._views = self._entropy = self._loss = 0.0
        self._times: tuple[int, int] | None = None

    def add(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Count a batch.

        Raises:
            StreamError: A row is invalid; nothing of the batch is counted.
        """
        block = self._joiner.join(batch, first_row)
        for name, report in self.fields.items():
            column = batch.column(name)
            if report.field.role not in ("categorical", "vector"):
                report.missing += column.null_count
            if room := FIRST_VALUES - len(report.first_values):
                report.first_values += _texts(column.slice(0, room))
        self._add_categories(block)
        self._add_numbers(block)
        self._add_labels(block)

    def _add_categories(self, block: Block) -> None:
        starts = self._features.slot_starts
        for number, one in enumerate(self._features.categorical):
            report = self.fields[one.name]
            slots = range(starts[number], starts[number + 1])
            if one.keys == "exact" and block.keys is not None:
                columns = [self._exact[slot] for slot in slots]
                keys = block.keys[:, columns]
                report.missing += int((keys == 0).all(axis=1).sum())
                self._seen[one.name][keys[keys != 0] % np.uint64(_KEY_CELLS)] = True
                continue
            rows = block.indices[:, slots.start : slots.stop]
            # Row 0 of all tables stands for no value, row 0 of the table for a missing one.
            there = rows > self._features.table_starts[number]
            report.missing += int((~there).all(axis=1).sum())
            rows = rows[there] - self._features.table_starts[number]
            seen = self._seen[one.name]
            seen[rows if len(seen) == one.buckets else rows % len(seen)] = True

    def _add_numbers(self, block: Block) -> None:
        column = 0
        for one in self._features.numeric:
            numbers = block.dense[:, column : column + one.size]
            column += one.size
            if not numbers.size:
                continue
            report = self.fields[one.name]
            if one.role == "vector":
                report.missing += int((numbers == 0).all(axis=1).sum())
            self._sums[one.name] += float(numbers.sum(dtype=np.float64))
            low, high = float(numbers.min()), float(numbers.max())
            report.minimum = low if report.minimum is None else min(low, report.minimum)
            report.maximum = high if report.maximum is None else max(high, report.maximum)

    def _add_labels(self, block: Block) -> None:
        self._clicks += float(block.labels.sum(dtype=np.float64))
        views = np.ones(len(block)) if block.views is None else block.views.astype(np.float64)
        self._views += float(views.sum())
        if block.truth is not None:
            truth = np.clip(block.truth.astype(np.float64), _SURE, 1.0 - _SURE)
            self._entropy -= float(views @ (truth * np.log(truth) + (1.0 - truth) * np.log1p(-truth)))
            if len(block.labels):
                clicks = block.labels.astype(np.float64)
                self._loss -= float(clicks @ np.log(truth) + (views - clicks) @ np.log1p(-truth))
        if block.timestamps is not None and len(block):
            low, high = int(block.timestamps.min()), int(block.timestamps.max())
            known = self._times or (low, high)
            self._times = min(low, known[0]), max(high, known[1])

    def report(self, found: Inspection) -> None:
        """Write the statistics to the result."""
        found.fields = list(self.fields.values())
        for name, seen in self._seen.items():
            self.fields[name].distinct = _distinct(self.fields[name].field, seen)
        if not found.rows:
            return
        for name, total in self._sums.items():
            self.fields[name].mean = total / (found.rows * self.fields[name].field.size)
        if self._times is not None:
            found.first_time, found.last_time = self._times
        schema = self._features.schema
        if schema.one("views") is not None:
            found.views = round(self._views)
        if not self._views:
            return
        if schema.one("label") is not None:
            rate = self._clicks / self._views
            found.click_rate = rate
            found.base_logloss = -sum(share * math.log(share) for share in (rate, 1.0 - rate) if share > 0.0)
        if schema.one("truth") is not None:
            found.optimal_logloss = self._entropy / self._views
            if found.click_rate is not None:
                found.realised_logloss = self._loss / self._views


def _cells(one: Field) -> int:
    return _KEY_CELLS if one.keys == "exact" else min(one.buckets, _MOST_CELLS)


def _distinct(one: Field, seen: Array) -> int:
    """Estimate the number of distinct values from the cells that they hit, by linear counting."""
    hit = int(np.count_nonzero(seen))
    if one.keys == "bucket":
        return hit
    cells = len(seen) - (one.keys == "hash")  # No value hashes to the first row of a table.
    if hit >= cells:
        return hit
    return round(-cells * math.log1p(-hit / cells))


def _texts(column: pa.Array) -> list[str]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    return [_text(value) for value in column.to_pylist()]


def _text(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[: _TEXT_CHARACTERS - 1]}…"
