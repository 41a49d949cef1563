"""A table that is fed from a stream: all its versions, each with the windows that it was made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa

from headrace.archive.archive import Archive
from headrace.archive.catalog import SpaceRecord
from headrace.archive.windows.counters import Counters
from headrace.archive.windows.plan import Measure, Plan, Total
from headrace.archive.windows.rows import RowMaker
from headrace.archive.windows.writing import Fed, Writer
from headrace.errors import ConfigError
from headrace.tensors import Array

_ROWS_AT_ONCE = 2**16


class _Meta(msgspec.Struct, kw_only=True):
    """What is kept beside the counters' arrays.

    Attributes:
        run: Which run it is; see ``Done``.
        table: The table.
        key: The stream's column with the keys.
        time: Its column with the times.
        every_seconds: How long a bucket is.
        rows: How many rows of the stream were taken.
        measures: Of the plan.
        totals: Of the plan.
        since: By version: the bucket since which it is fed.
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
    """Counts a stream's rows for a table, and writes what has changed at each boundary.

    Attributes:
        counters: What is counted.
        maker: What makes rows of record batches.
        rows: How many rows of the stream were taken.
        rows_before: How many of them came before those that errors count from.
    """

    def __init__(
        self,
        archive: Archive,
        table: str,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        is_saved: bool = True,
    ) -> None:
        """Find or make the version of the table with the windows of its settings.

        Args:
            archive: Where the table is.
            table: Which.
            is_stopping: Says when a store that does not answer is no longer to be waited for.
            is_saved: Whether its state will be saved, and gone on with.

        Raises:
            ConfigError: It has no windows, or its other versions cannot be fed in the same way.
            NotFound: There is no such table.
            Unavailable: The store does not answer.
        """
        settings = archive.config.tables.get(table)
        if settings is None or settings.feed is None:
            archive.record(table)  # says which there are
            raise ConfigError(f"the table {table!r} has no windows to be fed; add [tables.{table}.windows]")
        self._table, self._settings = table, settings.feed
        newest = archive.table_version(table, archive.config.spaces[table].columns or ())
        fed = _fed(archive.record(table), newest.number, settings.feed.every_seconds)
        plan = Plan.of(
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
        """Count rows, and write what the boundaries that they pass have changed.

        Raises:
            StreamError: A row is wrong; ``rows`` are counted, and it is none of them.
            FailedPrecondition: There are more keys and buckets than there is room for.
            Unavailable: The store does not answer, and is no longer waited for.
        """
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            part = batch.slice(start, _ROWS_AT_ONCE)
            rows = self.maker.make(part, self.rows - self.rows_before, self.counters)
            self._writer.write(self.counters.take(rows))
            self.rows += part.num_rows

    def finish(self) -> None:
        """The stream is over: write what the bucket that is still open holds; see ``take``."""
        self._writer.write(self.counters.finish())

    @property
    def stored(self) -> int:
        """How many rows of the table were written."""
        return self._writer.stored

    @property
    def clock_seconds(self) -> int:
        """The last boundary that the clock has passed, in Unix time; 0 before the first row."""
        return self.counters.clock * self._settings.every_seconds

    # ---- State --------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, object]]:
        """Everything that the feed goes on from: arrays, and what JSON can hold."""
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
        """Go on from a state. What was written after it is not written again.

        Raises:
            ConfigError: It is that of another table, or of rows that were read in another way.
        """
        try:
            found = msgspec.convert(meta, _Meta, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"checkpoint: it is none of headrace archive feed: {error}") from error
        now = {"table": self._table, **msgspec.structs.asdict(self._settings)}
        for name in ("table", "key", "time", "every_seconds"):
            saved = getattr(found, name)
            if saved != now[name]:
                raise ConfigError(
                    f"checkpoint: expected one of {name} = {now[name]!r}, got {saved!r}; begin anew in "
                    "another directory"
                )
        plan = Plan(tuple(found.measures), tuple(found.totals), found.every_seconds)
        self.counters.restore(arrays, plan)
        self.rows = found.rows
        self._writer.restore(found.run, found.since)


def _fed(record: SpaceRecord, newest: int, every_seconds: int) -> list[Fed]:
    """The versions of a table that are fed."""
    found = []
    for version in record.versions:
        windows = {one.name: one.window for one in version.columns if one.window is not None}
        if not windows:
            continue
        for name, window in windows.items():
            if window.seconds % every_seconds:
                raise ConfigError(
                    f"feed.every_seconds: expected what divides all windows, got {every_seconds}, and "
                    f"{name!r} of version {version.number} is {window.seconds} s long; drop it, if no "
                    "model needs it (headrace archive versions)"
                )
        found.append(Fed(version.number, windows, is_newest=version.number == newest))
    return found
