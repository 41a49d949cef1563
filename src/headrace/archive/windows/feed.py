"""Feeds a table from a stream: all its versions, each with the windows that it was created with.

Record batches are read as they arrive: from standard input, a file, or a topic's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.catalog import SpaceRecord
from headrace.archive.windows.bucket_plan import BucketPlan, Measure, Total
from headrace.archive.windows.counters import Counters
from headrace.archive.windows.table_writer import Fed, Writer
from headrace.base.errors import ConfigError, HeadraceError, StreamError, needs_extra
from headrace.base.tensors import Array
from headrace.stream.byte_sources import Pieces, Readable, Source, is_pieces, read_schema, source_of
from headrace.stream.schema import Schema

try:
    import pyarrow as pa

    from headrace.archive.tables.file_readers import ColumnFile
    from headrace.archive.windows.row_conversion import RowMaker
    from headrace.stream.arrow_ipc_parser import StreamParser
    from headrace.stream.byte_sources import ReadAhead
except ImportError as error:  # as with every optional package
    raise needs_extra("feeding a table", "train", error) from error

_BATCHES_AHEAD = 2
_ROWS_AT_ONCE = 2**16


class Batches(NamedTuple):
    """A source of rows.

    Attributes:
        names: Names of the columns.
        batches: Batches of rows. On invalid rows the earlier ones are yielded first, then ``StreamError`` is
            raised.
        wait: Waits for the next batch, or the end, for a number of seconds; returns False after that time.
    """

    names: list[str]
    batches: Iterator[pa.RecordBatch]
    wait: Callable[[float], bool]


@contextmanager
def open_stream_batches(file: Readable | Pieces) -> Iterator[Batches]:
    """Read all columns of a stream, ahead of its consumer.

    Args:
        file: Source of the stream.

    Raises:
        StreamError: The source does not begin with a stream.
    """
    source = source_of(file)
    parser = StreamParser(Schema(fields=()))
    if is_pieces(source):
        source.attach(parser)
    with closing(source):
        columns = read_schema(source, parser)
        with closing(ReadAhead(_batches(source, parser), source, _BATCHES_AHEAD)) as batches:
            yield Batches(columns.names, batches, batches.wait)


def file_batches(file: ColumnFile, columns: list[str]) -> Batches:
    """Read some columns of a file; the batches raise ``InvalidRequest`` if its rows cannot be read."""
    there = [name for name in columns if name in file.schema.names]
    return Batches(file.schema.names, _rechunked(file.batches(there, _ROWS_AT_ONCE)), lambda _: True)


def after(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first ``rows`` rows.

    Raises:
        StreamError: There are fewer rows than that.
    """
    left = rows
    for batch in batches:
        skipped = min(left, batch.num_rows)
        left -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
    if left:
        raise StreamError(
            f"it has {rows - left} rows, fewer than the {rows} that were read before the checkpoint; is it "
            "the same stream?",
            row=rows - left,
        )


def _rechunked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches into large ones, so that a key is written once for several buckets."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS_AT_ONCE:
                yield from _joined(waiting)
                waiting, rows = [], 0
    except HeadraceError:
        yield from _joined(waiting)
        raise
    yield from _joined(waiting)


def _batches(source: Source, parser: StreamParser) -> Iterator[pa.RecordBatch]:
    """Yield the stream's rows, joining batches that arrived together, without waiting for more."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        while count := _read(source, parser, waits=not waiting):
            if count > 0 and (batch := parser.filled(count)) is not None:
                waiting.append(batch)
                rows += batch.num_rows
            if waiting and (count < 0 or rows >= _ROWS_AT_ONCE):
                yield from _joined(waiting)
                waiting, rows = [], 0
        parser.finish()
    except StreamError:
        yield from _joined(waiting)
        raise
    yield from _joined(waiting)


def _read(source: Source, parser: StreamParser, *, waits: bool) -> int:
    """Read some bytes and return their number; 0 at the end, -1 if there are none now."""
    count = source.read(parser.room(), None if waits else 0.0)
    return -1 if count is None else count


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


class _Meta(msgspec.Struct, kw_only=True):
    """The metadata stored with the counters' arrays.

    Attributes:
        run: Id of the run; see ``Done``.
        table: Name of the table.
        key: Column of the stream with the keys.
        time: Column of the stream with the times.
        every_seconds: Length of a bucket in seconds.
        rows: Number of rows taken from the stream.
        measures: Measures of the plan.
        totals: Totals of the plan.
        since: First bucket fed to each version, by version.
    """

    run: str
    table: str
    key: str
    time: str
    every_seconds: int
    rows: int
    measures: list[Measure]
    totals: list[Total]
    since: dict[int, int]


class Feed:
    """Counts a stream's rows for a table, and writes the changes at each boundary.

    Attributes:
        counters: Counters of the table.
        maker: Converts record batches to rows.
        rows: Number of rows taken from the stream.
        rows_before: Number of rows before the present source; errors number the rows after them.
    """

    def __init__(
        self,
        archive: Archive,
        table: str,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        is_saved: bool = True,
    ) -> None:
        """Find or create the version of the table with the windows of its settings.

        Args:
            archive: Archive of the table.
            table: Name of the table.
            is_stopping: Returns whether to stop retrying when the store does not answer.
            is_saved: Whether the state will be saved, so that the feed can be resumed.

        Raises:
            ConfigError: The table has no windows, or its other versions cannot be fed with these settings.
            NotFound: There is no such table.
            Unavailable: The store does not answer.
        """
        settings = archive.config.tables.get(table)
        if settings is None or settings.feed is None:
            archive.record(table)  # raises NotFound, which lists the tables
            raise ConfigError(f"the table {table!r} has no windows to be fed; add [tables.{table}.windows]")
        self._table, self._settings = table, settings.feed
        newest = archive.table_version(table, archive.config.spaces[table].columns or ())
        fed = _fed(archive.record(table), newest.number, settings.feed.every_seconds)
        plan = BucketPlan.of(
            [one for version in fed for one in version.windows.values()], settings.feed.every_seconds
        )
        self.counters = Counters(
            plan,
            ahead_buckets=settings.feed.ahead_seconds // settings.feed.every_seconds,
            max_cells=settings.feed.max_cells,
        )
        self.maker = RowMaker(plan, settings.feed, archive.config.spaces[table].max_key_bytes)
        self._writer = Writer(archive, table, fed, self.counters, is_stopping)
        self._writer.is_noted = is_saved
        self.rows = self.rows_before = 0

    # ---- Rows ---------------------------------------------------------------------------------

    def take(self, batch: pa.RecordBatch) -> None:
        """Count rows, and write the changes at the boundaries that they pass.

        Raises:
            StreamError: A row is invalid. Rows are counted in parts of up to 65,536; ``rows`` counts those
                in the parts before.
            FailedPrecondition: There are more pairs of a key and a bucket than allowed.
            Unavailable: The store does not answer, and the feed is stopping.
        """
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            part = batch.slice(start, _ROWS_AT_ONCE)
            rows = self.maker.make(part, self.rows - self.rows_before, self.counters)
            self._writer.write(self.counters.take(rows))
            self.rows += part.num_rows

    def finish(self) -> None:
        """End the stream: write the changes of the bucket that is still open; see ``take``."""
        self._writer.write(self.counters.finish())

    @property
    def stored(self) -> int:
        """Number of rows of the table written."""
        return self._writer.stored

    @property
    def clock_seconds(self) -> int:
        """Last boundary that the clock has passed, in seconds of Unix time; 0 while the clock is unknown."""
        return self.counters.clock * self._settings.every_seconds

    # ---- State --------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, object]]:
        """Return the state to resume from: arrays, and JSON-compatible metadata."""
        plan = self.counters.plan
        meta = _Meta(
            run=self._writer.done.run,
            table=self._table,
            key=self._settings.key,
            time=self._settings.time,
            every_seconds=self._settings.every_seconds,
            rows=self.rows,
            measures=list(plan.measures),
            totals=list(plan.totals),
            since=self._writer.done.since,
        )
        found: dict[str, object] = msgspec.to_builtins(meta, str_keys=True)
        return self.counters.state(), found

    def restore(self, arrays: Mapping[str, Array], meta: object) -> None:
        """Resume from a state. Rows written after it was saved are not written again.

        Raises:
            ConfigError: The state is of another table, or of a stream read with other settings.
        """
        try:
            found = msgspec.convert(meta, _Meta, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"checkpoint: not a checkpoint of headrace archive feed: {error}") from error
        now = {"table": self._table, **msgspec.structs.asdict(self._settings)}
        for name in ("table", "key", "time", "every_seconds"):
            saved = getattr(found, name)
            if saved != now[name]:
                raise ConfigError(
                    f"checkpoint: expected one of {name} = {now[name]!r}, got {saved!r}; start again in "
                    "another directory"
                )
        plan = BucketPlan(tuple(found.measures), tuple(found.totals), found.every_seconds)
        self.counters.restore(arrays, plan)
        self.rows = found.rows
        self._writer.restore(found.run, found.since)


def _fed(record: SpaceRecord, newest: int, every_seconds: int) -> list[Fed]:
    """Return the versions of a table that are fed."""
    found = []
    for version in record.versions:
        windows = {one.name: one.window for one in version.columns if one.window is not None}
        if not windows:
            continue
        for name, window in windows.items():
            if window.seconds % every_seconds:
                raise ConfigError(
                    f"feed.every_seconds: expected a divisor of all windows, got {every_seconds}, and "
                    f"{name!r} of version {version.number} is {window.seconds} s long; drop that version if "
                    "no model needs it (headrace archive versions)"
                )
        found.append(Fed(version.number, windows, is_newest=version.number == newest))
    return found
