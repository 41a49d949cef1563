"""What has changed in the windows of a table, written to all its versions."""

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

from headrace.archive.archive import Archive
from headrace.archive.given import checked_rows
from headrace.archive.windows.counters import Changed, Counters
from headrace.archive.windows.window import Window
from headrace.errors import FailedPrecondition, HeadraceError, Refused
from headrace.formats import check_format
from headrace.tensors import Array

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 2**16
_STORED_AT_ONCE = 5000
_MILLISECONDS = 1000
_LONGEST_PAUSE_SECONDS = 2.0


FORMAT = 1
"""The format in which it is noted how far a run is; newer ones are not read."""


class Done(msgspec.Struct, kw_only=True):
    """How far a run is; kept in the store.

    Attributes:
        run: What tells it from others that feed the table, before it or by mistake beside it.
        written: By version: the last boundary that all its rows were written of, in Unix milliseconds.
        since: By version: the bucket since which it is fed.
        format: The version of this format.
    """

    run: str
    written: dict[int, int] = {}
    since: dict[int, int] = {}
    format: int = FORMAT


@dataclass
class Fed:
    """A version of a table that is fed, and what is still to be written to it.

    Attributes:
        number: The version.
        windows: Its windows by column.
        is_newest: Whether it is that of today's settings.
        slots: Of changed keys, by boundary.
        boundaries: When they changed, in Unix milliseconds.
        values: What they have now, by column.
    """

    number: int
    windows: Mapping[str, Window]
    is_newest: bool
    slots: list[Array] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    values: list[dict[str, Array]] = field(default_factory=list)

    @property
    def longest_seconds(self) -> int:
        """How long its longest window is."""
        return max(one.seconds for one in self.windows.values())

    def taken(self, *, is_past_kept: bool) -> tuple[Array, Array, dict[str, Array]]:
        """Slots, boundaries and values that are to be written, in order; none are left here.

        Args:
            is_past_kept: Whether values matter that are replaced at once.
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
    """Writes what has changed, and notes in the store how far it is.

    Attributes:
        done: How far it is.
        stored: How many rows were written.
        is_noted: Whether it notes how far it is, so that it can be gone on with.
    """

    def __init__(
        self,
        archive: Archive,
        table: str,
        fed: list[Fed],
        counters: Counters,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Begin a run, which nobody shall go on with unless ``is_noted`` is set.

        Args:
            archive: Where the table is.
            table: Which.
            fed: Its versions.
            counters: What has changed.
            is_stopping: Says when a store that does not answer is no longer to be waited for.
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
        """Go on with a run. What it has written is not written again: nothing that is served gets older.

        Raises:
            Unavailable: The store does not answer, and is no longer waited for.
            FailedPrecondition: A newer headrace has noted there how far it is.
            HeadraceError: What is noted there is damaged.
        """
        self.done = Done(run=run, since=dict(since))
        noted = self._persist(lambda: self._archive.store.read(self._name))
        if noted is not None and (done := _noted(noted, self._table)).run == run:
            self.done = done

    def write(self, changes: Iterable[Changed]) -> None:
        """Write changes; all are written when it returns. No key's slot is given to another meanwhile.

        Raises:
            Unavailable: The store does not answer, and is no longer waited for.
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
            return 0  # before the feed was killed
        if fed.number not in self.done.since:  # all that is counted is new to it
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
        """Store rows; the keys were checked with the stream's rows."""
        reader = self._archive.reader(self._table, version)
        rows = checked_rows(values, len(keys), reader.version)
        for start in range(0, len(keys), _STORED_AT_ONCE):
            some = slice(start, start + _STORED_AT_ONCE)
            self._persist(partial(self._archive.store_vectors, reader, keys[some], rows[some], written[some]))

    def _make_default(self, fed: Fed) -> None:
        """Answer bare lookups from the version of today's settings, now that its windows are complete."""
        if not fed.is_newest or self._archive.record(self._table).default == fed.number:
            return
        self._persist(partial(self._archive.catalog.move_default, self._table, fed.number))

    def _note(self) -> None:
        """Say in the store how far the run is."""
        content, store = msgspec.json.encode(self.done), self._archive.store

        def note() -> bytes | None:
            before = store.read(self._name)
            if before != content:
                store.swap(self._name, before, content)
            return before

        before = self._persist(note)
        if self._noted is not None and before not in (self._noted, content) and not self._is_told:
            self._is_told = True
            _log.warning("another feed writes the table %s, too: its rows are now of both", self._table)
        self._noted = content

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


def _noted(content: bytes, table: str) -> Done:
    where = f"the store's note of how far the table {table!r} is fed"
    check_format(content, FORMAT, where, FailedPrecondition)
    try:
        return msgspec.json.decode(content, type=Done)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadraceError(f"{where} is damaged: {error}; begin anew in another directory") from error


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number == 1:
        _log.warning("rows of the table cannot be stored, trying again: %s", error)
