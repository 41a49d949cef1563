"""A table that is fed from a stream: all its versions, each with the windows that it was made with."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import tenacity

from headrace.archive.archive import Archive
from headrace.archive.catalog import SpaceRecord, SpaceVersion, with_default
from headrace.archive.windows.counters import Changed, Counters
from headrace.archive.windows.plan import Measure, Plan, Total
from headrace.archive.windows.rows import RowMaker
from headrace.archive.windows.window import Window
from headrace.errors import ConfigError, Refused
from headrace.tensors import Array

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 2**16
_MILLISECONDS = 1000
_LONGEST_PAUSE_SECONDS = 2.0


class Done(msgspec.Struct, kw_only=True):
    """How far a feed is.

    Attributes:
        run: What tells it from others that feed the table, before it or by mistake beside it.
        written: By version: the last boundary that all its rows were written of, in Unix milliseconds.
    """

    run: str
    written: dict[int, int] = {}


class _Meta(msgspec.Struct, kw_only=True):
    """What is kept beside the counters' arrays.

    Attributes:
        run: As in ``Done``.
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
        stored: How many rows of the table were written.
    """

    def __init__(self, archive: Archive, table: str, is_stopping: Callable[[], bool]) -> None:
        """Find or make the version of the table with the windows of its settings.

        Args:
            archive: Where the table is.
            table: Which.
            is_stopping: Says when a store that does not answer is no longer to be waited for.

        Raises:
            ConfigError: It has no windows, or its other versions cannot be fed in the same way.
            NotFound: There is no such table.
            Unavailable: The store does not answer.
        """
        settings = archive.config.tables.get(table)
        if settings is None or settings.feed is None:
            archive.record(table)  # says which there are
            raise ConfigError(f"the table {table!r} has no windows to be fed; add [tables.{table}.windows]")
        self._archive, self._table, self._settings = archive, table, settings.feed
        self._is_stopping = is_stopping
        self._newest = archive.table_version(table, archive.config.spaces[table].columns or ())
        self._versions = _fed(archive.record(table), settings.feed.every_seconds)
        windows = [window for _, named in self._versions for window in named.values()]
        plan = Plan.of(windows, settings.feed.every_seconds)
        self.counters = Counters(
            plan,
            ahead_buckets=settings.feed.ahead_seconds // settings.feed.every_seconds,
            max_cells=settings.feed.max_cells,
        )
        self.maker = RowMaker(plan, settings.feed, archive.config.spaces[table].max_key_bytes)
        self.rows = self.stored = 0
        self._since: dict[int, int] = {}
        self._name = f"feed/{table}"
        self._done = Done(run=secrets.token_hex(8))

    # ---- Rows ---------------------------------------------------------------------------------

    def take(self, batch: pa.RecordBatch) -> None:
        """Count rows, and write what the boundaries that they pass have changed.

        Raises:
            StreamError: A row is wrong; those before its batch are counted.
            FailedPrecondition: There are more keys and buckets than there is room for.
            Unavailable: The store does not answer, and is no longer waited for.
        """
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            part = batch.slice(start, _ROWS_AT_ONCE)
            rows = self.maker.make(part, self.rows, self.counters)
            self._write(self.counters.take(rows))
            self.rows += part.num_rows

    def finish(self) -> None:
        """The stream is over: write what the bucket that is still open holds; see ``take``."""
        self._write(self.counters.finish())

    @property
    def clock_seconds(self) -> int:
        """The last boundary that the clock has passed, in Unix time; 0 before the first row."""
        return self.counters.clock * self._settings.every_seconds

    # ---- State --------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, object]]:
        """Everything that the feed goes on from: arrays, and what JSON can hold."""
        plan = self.counters.plan
        meta = _Meta(
            run=self._done.run,
            table=self._table,
            key=self._settings.key,
            time=self._settings.time,
            every_seconds=self._settings.every_seconds,
            rows=self.rows,
            measures=list(plan.measures),
            totals=list(plan.totals),
            since=self._since,
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
        self.rows, self._since = found.rows, dict(found.since)
        self._done = Done(run=found.run)
        stored = self._persist(lambda: self._archive.store.read(self._name))
        if stored is not None and (done := msgspec.json.decode(stored, type=Done)).run == found.run:
            self._done = done

    # ---- Writing ------------------------------------------------------------------------------

    def _write(self, changes: Iterable[Changed]) -> None:
        for changed in changes:
            boundary = changed.boundary * self._settings.every_seconds * _MILLISECONDS
            for version, windows in self._versions:
                if boundary <= self._done.written.get(version.number, 0):
                    continue  # before the feed was killed
                self._write_version(version, windows, changed, boundary)
            self._note()

    def _write_version(
        self, version: SpaceVersion, windows: Mapping[str, Window], changed: Changed, boundary: int
    ) -> None:
        slots = changed.slots
        since = self._since.get(version.number)
        if since is None:  # all that is counted is new to it
            self._since[version.number] = since = changed.boundary
            slots = np.union1d(slots, self.counters.slots_in_windows)
        keys = [self.counters.keys[slot] for slot in slots.tolist()]
        values = self.counters.plan.values(windows, *self.counters.totals(slots))
        written = np.full(len(keys), boundary, np.uint64)
        self._persist(
            lambda: self._archive.put_rows(self._table, keys, values, version=version.number, written=written)
        )
        self._done.written[version.number] = boundary
        self.stored += len(keys)
        longest = max(one.seconds for one in windows.values())
        if (changed.boundary - since) * self._settings.every_seconds >= longest:
            self._make_default(version)

    def _make_default(self, version: SpaceVersion) -> None:
        """Answer bare lookups from the version of today's settings, now that its windows are complete."""
        record = self._archive.record(self._table)
        if version.number != self._newest.number or record.default == version.number:
            return
        self._persist(
            lambda: self._archive.catalog.change(
                self._table, lambda found: with_default(found, version.number)
            )
        )

    def _note(self) -> None:
        """Say in the store how far the feed is."""
        content = msgspec.json.encode(self._done)

        def note() -> None:
            before = self._archive.store.read(self._name)
            if before != content:
                self._archive.store.swap(self._name, before, content)

        self._persist(note)

    def _persist(self, call: Callable[[], _T]) -> _T:
        """Call until the store answers, or there is no waiting any more."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Refused),
            wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS, jitter=0.1),
            stop=lambda _state: self._is_stopping(),
            before_sleep=_tell,
            reraise=True,
        )
        return retrying(call)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number == 1:
        _log.warning("rows of the table cannot be stored, trying again: %s", error)


def _fed(record: SpaceRecord, every_seconds: int) -> list[tuple[SpaceVersion, dict[str, Window]]]:
    """The versions of a table that are fed, with their windows by column."""
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
        found.append((version, windows))
    return found
