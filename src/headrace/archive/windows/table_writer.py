"""Writes changed windows of a table to all its versions."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import tenacity

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.writes import checked_rows
from headrace.archive.model.window_settings import Window
from headrace.archive.windows.counters import Changed, Counters
from headrace.base.errors import FailedPrecondition, HeadraceError, Refused
from headrace.base.format_numbers import check_format
from headrace.base.tensors import Array

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 2**16
_STORED_AT_ONCE = 5000
_MILLISECONDS = 1000
_LONGEST_PAUSE_SECONDS = 2.0


FORMAT = 1
"""Format of ``Done``; newer formats are rejected."""


class Done(msgspec.Struct, kw_only=True):
    """The progress of a run, kept in the store.

    Attributes:
        run: Id of the run, unique among all runs that feed the table, earlier or concurrent.
        written: Last boundary up to which all rows are written, in Unix milliseconds, by version.
        since: First bucket fed to each version, by version.
        format: Format of the record; see ``FORMAT``.
    """

    run: str
    written: dict[int, int] = {}
    since: dict[int, int] = {}
    format: int = FORMAT


@dataclass
class Fed:
    """A version of a table that is fed, with the changes not yet written to it.

    Attributes:
        number: Number of the version.
        windows: Its windows, by column.
        is_newest: Whether it is the version of the current settings.
        slots: Slots of changed keys, one array per boundary.
        boundaries: Boundaries of the changes, in Unix milliseconds.
        values: Values at each boundary, by column.
    """

    number: int
    windows: Mapping[str, Window]
    is_newest: bool
    slots: list[Array] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    values: list[dict[str, Array]] = field(default_factory=list)

    @property
    def longest_seconds(self) -> int:
        """Length of its longest window in seconds."""
        return max(one.seconds for one in self.windows.values())

    def taken(self, *, is_past_kept: bool) -> tuple[Array, Array, dict[str, Array]]:
        """Return and clear the slots, write times and values to write, in order.

        Args:
            is_past_kept: Whether to keep values that a later one of the same key replaces.
        """
        slots = np.concatenate(self.slots)
        written = np.repeat(np.array(self.boundaries, np.uint64), [len(some) for some in self.slots])
        values = {name: np.concatenate([one[name] for one in self.values]) for name in self.windows}
        self.slots, self.boundaries, self.values = [], [], []
        if is_past_kept:
            return slots, written, values
        _, from_end = np.unique(slots[::-1], return_index=True)
        last = len(slots) - 1 - from_end
        return slots[last], written[last], {name: one[last] for name, one in values.items()}


class Writer:
    """Writes changes, and records the progress in the store.

    Attributes:
        done: Progress of the run.
        stored: Number of rows written.
        is_noted: Whether to record the progress, so that the run can be resumed.
    """

    def __init__(
        self,
        archive: Archive,
        table: str,
        fed: list[Fed],
        counters: Counters,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Start a run. It can be resumed only if ``is_noted`` is set, which is off at first.

        Args:
            archive: Archive of the table.
            table: Name of the table.
            fed: Versions of the table that are fed.
            counters: Counters whose changes are written.
            is_stopping: Returns whether to stop retrying when the store does not answer.
        """
        self.done = Done(run=secrets.token_hex(8))
        self.stored = 0
        self.is_noted = False
        self._archive, self._table, self._fed, self._counters = archive, table, fed, counters
        self._is_stopping = is_stopping
        self._is_past_kept = archive.config.spaces[table].history_seconds > 0
        self._name = f"feed/{table}"
        self._noted: bytes | None = None
        self._is_told = False

    def restore(self, run: str, since: Mapping[int, int]) -> None:
        """Resume a run. Rows that it has written are not written again, so served values never regress.

        Raises:
            Unavailable: The store does not answer, and the feed is stopping.
            FailedPrecondition: A newer headrace has recorded the progress.
            HeadraceError: The recorded progress is damaged.
        """
        self.done = Done(run=run, since=dict(since))
        noted = self._persist(lambda: self._archive.store.read(self._name))
        if noted is not None and (done := _noted(noted, self._table)).run == run:
            self.done = done

    def write(self, changes: Iterable[Changed]) -> None:
        """Write changes; return once all are written. Meanwhile no slot may be reassigned to another key.

        Raises:
            Unavailable: The store does not answer, and the feed is stopping.
        """
        waiting = 0
        for changed in changes:
            waiting += sum(self._add(one, changed) for one in self._fed)
            if waiting >= _ROWS_AT_ONCE:
                self._flush()
                waiting = 0
        if waiting:
            self._flush()

    def _add(self, fed: Fed, changed: Changed) -> int:
        plan, slots = self._counters.plan, changed.slots
        boundary = changed.boundary * plan.every_seconds * _MILLISECONDS
        if boundary <= self.done.written.get(fed.number, 0):
            return 0  # already written before the feed was restarted
        if fed.number not in self.done.since:  # a new version needs all keys in windows
            self.done.since[fed.number] = changed.boundary
            slots = np.union1d(slots, self._counters.slots_in_windows)
        fed.slots.append(slots)
        fed.boundaries.append(boundary)
        fed.values.append(plan.values(fed.windows, *self._counters.totals(slots)))
        return len(slots)

    def _flush(self) -> None:
        for fed in self._fed:
            if not fed.boundaries:
                continue
            boundary = fed.boundaries[-1]
            slots, written, values = fed.taken(is_past_kept=self._is_past_kept)
            keys = [self._counters.keys[slot] for slot in slots.tolist()]
            self._put(fed.number, keys, values, written)
            self.done.written[fed.number] = boundary
            self.stored += len(keys)
            every = self._counters.plan.every_seconds
            if boundary // _MILLISECONDS - self.done.since[fed.number] * every >= fed.longest_seconds:
                self._make_default(fed)
        if self.is_noted:
            self._note()

    def _put(self, version: int, keys: list[str], values: Mapping[str, Array], written: Array) -> None:
        """Store rows; the keys were checked when the stream's rows were read."""
        reader = self._archive.reader(self._table, version)
        rows = checked_rows(values, len(keys), reader.version)
        for start in range(0, len(keys), _STORED_AT_ONCE):
            some = slice(start, start + _STORED_AT_ONCE)
            self._persist(partial(self._archive.store_vectors, reader, keys[some], rows[some], written[some]))

    def _make_default(self, fed: Fed) -> None:
        """Make the version of the current settings the default, now that its windows are complete."""
        if not fed.is_newest or self._archive.record(self._table).default == fed.number:
            return
        self._persist(partial(self._archive.catalog.move_default, self._table, fed.number))

    def _note(self) -> None:
        """Record the progress in the store."""
        content, store = msgspec.json.encode(self.done), self._archive.store

        def note() -> bytes | None:
            before = store.read(self._name)
            if before != content:
                store.swap(self._name, before, content)
            return before

        before = self._persist(note)
        if self._noted is not None and before not in (self._noted, content) and not self._is_told:
            self._is_told = True
            _log.warning("another feed also writes the table %s: its rows now come from both", self._table)
        self._noted = content

    def _persist(self, call: Callable[[], _T]) -> _T:
        """Call until the store answers or the feed is stopping."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Refused),
            wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS, jitter=0.1),
            stop=lambda _state: self._is_stopping(),
            before_sleep=_tell,
            reraise=True,
        )
        return retrying(call)


def _noted(content: bytes, table: str) -> Done:
    where = f"the store's record of the feed of the table {table!r}"
    check_format(content, FORMAT, where, FailedPrecondition)
    try:
        return msgspec.json.decode(content, type=Done)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadraceError(
            f"{where} is damaged: {error}; start a new feed, with another --checkpoint directory"
        ) from error


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number == 1:
        _log.warning("rows of the table cannot be stored, trying again: %s", error)
