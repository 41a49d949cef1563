"""Counters by key over windows of event time. They do no I/O, and the rows' times are their only clock.

Time is divided into buckets. The clock is the bucket of the newest row so far, and only moves forward. When
it moves on from a bucket, the bucket has ended, at a moment called the boundary. The totals then cover the
rows before the boundary: a total over ``n`` buckets covers the rows whose time is in the ``n`` buckets before
it. A late row counts in its own bucket, from the next boundary on, while that bucket is in a window. A row
that is later than the longest window is ignored and reported.

A row that is too far ahead of the clock is held, as its own clock may be wrong. After enough consecutive rows
ahead, the clock follows them and they count. If a row that is not ahead comes first, they are refused and
reported. The very first rows are held in the same way.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.archive.model.window_settings import Window
from headrace.archive.windows import kernels
from headrace.archive.windows.bucket_plan import BucketPlan, Measure
from headrace.archive.windows.kernels import JUMP_ROWS, Cells, CountedRows, Opened, Totals
from headrace.base.errors import ConfigError, FailedPrecondition
from headrace.base.tensors import Array

_FIRST_ROOM = 1024


@dataclass(frozen=True, slots=True)
class Changed:
    """The changes at a boundary.

    Attributes:
        boundary: First bucket that has not ended; the totals are those at its start.
        slots: Slots whose totals have changed, int32 ``[N]``.
    """

    boundary: int
    slots: Array


@dataclass(slots=True)
class LateAndEarlyRows:
    """Numbers of rows that were late or ahead of the clock.

    Attributes:
        late: Rows that came after their bucket had ended, and count from the next boundary on.
        too_late: Rows that came after all windows had left their bucket, and are ignored.
        refused: Rows that were too far ahead of the clock, and are ignored.
        held: Rows that are ahead of the clock, and wait for others that agree.
    """

    late: int
    too_late: int
    refused: int
    held: int


class Counters:
    """The totals of all keys, and the cells that they are made of.

    Attributes:
        plan: Plan of what is counted.
        keys: Keys by slot; "" for a free slot.
    """

    def __init__(self, plan: BucketPlan, *, ahead_buckets: int, max_cells: int) -> None:
        """Start without rows.

        Args:
            plan: Plan of what is counted.
            ahead_buckets: Number of buckets that a row may be ahead of the clock.
            max_cells: Maximum number of pairs of a key and a bucket.
        """
        self.plan = plan
        self.keys: list[str] = []
        self._max_cells = max_cells
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._state = np.zeros(kernels.STATES, np.int64)
        self._state[kernels.AHEAD], self._state[kernels.LONGEST] = max(1, ahead_buckets), plan.longest
        self._refs = np.zeros(0, np.int32)
        self._marks = np.zeros(0, np.int64)
        self._totals = self._no_totals(0)
        self._held = no_rows(plan, JUMP_ROWS)
        self._opened = self._room_for(_FIRST_ROOM)
        self._closed: dict[int, list[Cells]] = {}
        self._closed_buckets: list[int] = []  # keys of ``_closed``, ascending
        self._closed_cells = 0
        self._mark = 0

    # ---- Rows ---------------------------------------------------------------------------------

    def slots_of(self, keys: Sequence[str]) -> Array:
        """Return the slots of keys, int32 ``[N]``; valid until the next call."""
        found = list(map(self._slots.get, keys))
        missing = found.count(None)
        if missing:
            if missing > len(self._free):
                self._make_room(missing, keys)
                found = list(map(self._slots.get, keys))
            for place, key in enumerate(keys):
                if found[place] is None and (slot := self._slots.get(key)) is None:
                    found[place] = slot = self._slots[key] = self._free.pop()
                    self.keys[slot] = key
        return np.array(found, np.int32)

    def take(self, rows: CountedRows) -> Iterator[Changed]:
        """Take rows in order.

        Args:
            rows: Rows, with slots from the last call of ``slots_of``.

        Yields:
            The changes at each boundary that the clock passes, in order. The totals are those of that
            boundary until the next one is requested.

        Raises:
            FailedPrecondition: There are more pairs of a key and a bucket than allowed.
        """
        at = 0
        while True:
            at, why = kernels.scan(rows, at, self._opened, self._refs, self._held, self._state)
            if why == kernels.DONE:
                return
            if why == kernels.FULL:
                self._grow_open()
            elif why == kernels.MOVED:
                yield from self._advance_to(int(rows.buckets[at]))
            else:
                yield from self._accept_held()

    def finish(self) -> Iterator[Changed]:
        """Close the open bucket at the end of the stream. Rows may still follow, including late ones."""
        if not self._state[kernels.KNOWN] and self._state[kernels.HELD]:
            yield from self._accept_held()
        if self._state[kernels.CELLS]:
            yield from self._advance_to(self.clock + 1)

    def totals(self, slots: Array) -> tuple[Array, Array]:
        """Return the totals of slots: counts, int64 ``[N, T]``, and sums, float64 ``[N, T]``."""
        return self._totals.counts[slots], self._totals.high[slots]

    @property
    def clock(self) -> int:
        """Bucket that is open; 0 while it is not known."""
        return int(self._state[kernels.CLOCK])

    @property
    def told(self) -> LateAndEarlyRows:
        """Numbers of rows that were late or ahead of the clock."""
        state = self._state
        return LateAndEarlyRows(
            int(state[kernels.LATE]),
            int(state[kernels.TOO_LATE]),
            int(state[kernels.REFUSED]),
            int(state[kernels.HELD]),
        )

    @property
    def counted_slots(self) -> Array:
        """Slots of keys with cells or held rows, int32."""
        return np.flatnonzero(self._refs > 0).astype(np.int32)

    @property
    def slots_in_windows(self) -> Array:
        """Slots of keys with rows in a window, int32."""
        return np.flatnonzero(self._totals.counts.any(axis=1)).astype(np.int32)

    # ---- State --------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return the state to resume from, without the plan; keys without cells or held rows are left out."""
        slots = self.counted_slots
        places = np.full(len(self.keys), -1, np.int32)
        places[slots] = np.arange(len(slots), dtype=np.int32)
        texts = [self.keys[slot].encode() for slot in slots.tolist()]
        arrays: dict[str, Array] = {
            "state": self._state.copy(),
            "keys": np.frombuffer(b"".join(texts), np.uint8),
            "key_bytes": np.array([len(text) for text in texts], np.int64),
        }
        chunks = [one for _, cells in sorted(self._closed.items()) for one in cells] or [self._no_cells(0)]
        closed = Cells(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)))
        cells = int(self._state[kernels.CELLS])
        opened = Cells(*(part[:cells] for part in self._opened.cells))
        held = CountedRows(*(part[: self._state[kernels.HELD]] for part in self._held))
        for prefix, part in (("closed", closed), ("opened", opened), ("held", held)):
            arrays |= {f"{prefix}.{name}": array.copy() for name, array in part._asdict().items()}
            arrays[f"{prefix}.slots"] = np.where(part.slots >= 0, places[part.slots], -1).astype(np.int32)
        for name, array in self._totals._asdict().items():
            arrays[f"totals.{name}"] = array[slots]
        return arrays

    def restore(self, arrays: Mapping[str, Array], before: BucketPlan) -> None:
        """Resume from a state that may have been made with another plan.

        A new window starts with the buckets that are kept, and is complete after its own length at the
        latest. A new measure starts with no rows.

        Args:
            arrays: The state.
            before: Plan that it was made with, for buckets of the same length.

        Raises:
            ConfigError: The arrays are not a state of such counters.
        """
        try:
            self._restore(arrays, before)
        except (KeyError, ValueError, IndexError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"checkpoint: it holds no counters; is it one of this feed? ({error!r})"
            ) from error

    def _restore(self, arrays: Mapping[str, Array], before: BucketPlan) -> None:
        ends = np.cumsum(arrays["key_bytes"]).tolist()
        blob = arrays["keys"].tobytes()
        keys = [blob[start:stop].decode() for start, stop in itertools.pairwise([0, *ends])]
        slots = self.slots_of(keys)
        held, opened, closed = (
            {name.partition(".")[2]: one for name, one in arrays.items() if name.startswith(prefix)}
            for prefix in ("held.", "opened.", "closed.")
        )
        for part in (held, opened, closed):
            part["slots"] = np.where(part["slots"] >= 0, slots[part["slots"]], -1).astype(np.int32)
            np.add.at(self._refs, part["slots"][part["slots"] >= 0], 1)
        of_measure = [_place(before.measures, one) for one in self.plan.measures]
        had_sum = [
            _place([m for m in before.measures if m.column], m) for m in self.plan.measures if m.column
        ]
        count = len(held["slots"])
        self._held.slots[:count], self._held.buckets[:count] = held["slots"], held["buckets"]
        self._held.counted[:count] = _chosen(held["counted"], of_measure)
        self._held.numbers[:count] = _chosen(held["numbers"], had_sum)
        ahead, longest = self._state[kernels.AHEAD], self._state[kernels.LONGEST]
        self._state[:] = arrays["state"]
        self._state[kernels.AHEAD], self._state[kernels.LONGEST] = ahead, longest
        self._state[kernels.CELLS] = 0
        for part, is_open in ((closed, False), (opened, True)):
            cells = Cells(
                part["slots"],
                part["buckets"],
                _chosen(part["counts"], of_measure),
                _chosen(part["high"], had_sum),
                _chosen(part["low"], had_sum),
            )
            if is_open:
                self._reopen(cells)
            else:
                self._keep(cells)
        self._restore_totals(arrays, slots, before)

    def _reopen(self, cells: Cells) -> None:
        while len(self._opened.cells.slots) < len(cells.slots):
            self._grow_open()
        for part, given in zip(self._opened.cells, cells, strict=True):
            part[: len(given)] = given
        kernels.put_back(*self._opened, len(cells.slots))
        self._state[kernels.CELLS] = len(cells.slots)

    def _restore_totals(self, arrays: Mapping[str, Array], slots: Array, before: BucketPlan) -> None:
        """Restore the totals of the state, and compute new ones from the cells."""
        new, known = [], {before.key_of(one): place for place, one in enumerate(before.totals)}
        for place, total in enumerate(self.plan.totals):
            at = known.get(self.plan.key_of(total))
            if at is None:
                new.append(place)
                continue
            for name, one in self._totals._asdict().items():
                one[slots, place] = arrays[f"totals.{name}"][:, at]
        table = self.plan.table.copy()
        table[[place for place in range(len(table)) if place not in new], 2] = 0  # length 0 excludes them
        for _, chunks in sorted(self._closed.items()):
            for cells in chunks:
                kernels.enter(cells, self._totals, table, self.clock)
        for bucket in [one for one in self._closed if one < self.clock - self.plan.longest]:
            self._drop_bucket(bucket)

    # ---- The clock ----------------------------------------------------------------------------

    def _accept_held(self) -> Iterator[Changed]:
        """Accept the held rows: move the clock to the first of their buckets and count them."""
        count = int(self._state[kernels.HELD])
        held = CountedRows(*(part[:count].copy() for part in self._held))
        self._state[kernels.HELD] = 0
        earliest = int(held.buckets.min())
        if not self._state[kernels.KNOWN]:
            self._state[kernels.KNOWN], self._state[kernels.CLOCK] = 1, earliest
        else:
            yield from self._advance_to(earliest)
        yield from self.take(held)
        np.subtract.at(self._refs, held.slots[held.slots >= 0], 1)

    def _advance_to(self, bucket: int) -> Iterator[Changed]:
        """Move the clock up to a bucket, stopping at each boundary where anything changes."""
        while self.clock < bucket:
            boundary = self._next_boundary()
            if boundary > bucket:
                self._state[kernels.CLOCK] = bucket
                return
            changed = self._close(boundary)
            if len(changed.slots):
                yield changed

    def _next_boundary(self) -> int:
        """Return the next boundary where a bucket enters or leaves a window."""
        if self._state[kernels.CELLS]:
            return self.clock + 1
        next_one, closed = 2**62, self._closed_buckets
        for length in self.plan.lengths:
            place = bisect.bisect_left(closed, self.clock - length)  # the first still in the window
            if place < len(closed):
                next_one = min(next_one, closed[place] + length + 1)
        return next_one

    def _close(self, boundary: int) -> Changed:
        count = int(self._state[kernels.CELLS])
        new = Cells(*(part[:count].copy() for part in self._opened.cells))
        self._state[kernels.CELLS] = 0
        if count:
            self._opened.places.fill(-1)
        leaving = [
            cells for buckets in self.plan.lengths for cells in self._closed.get(boundary - 1 - buckets, ())
        ]
        self._mark += 1
        touched = np.empty(sum(len(cells.slots) for cells in (new, *leaving)), np.int32)
        count = 0
        for cells in (new, *leaving):
            count = kernels.touch(cells.slots, self._marks, self._mark, touched, count)
        touched = touched[:count]
        before = self.totals(touched)
        kernels.enter(new, self._totals, self.plan.table, boundary)
        for cells in leaving:
            kernels.leave(cells, self._totals, self.plan.table, boundary)
        self._keep(new)
        self._drop_bucket(boundary - 1 - self.plan.longest)
        self._state[kernels.CLOCK] = boundary
        changed = np.zeros(len(touched), bool)
        for was, now in zip(before, self.totals(touched), strict=True):
            changed |= (was != now).any(axis=1)
        return Changed(boundary, touched[changed])

    # ---- Memory -------------------------------------------------------------------------------

    def _keep(self, cells: Cells) -> None:
        """Keep cells until all windows have left them."""
        if not len(cells.slots):
            return
        self._closed_cells += len(cells.slots)
        self._check_room(self._closed_cells)
        first = cells.buckets[0]
        if (cells.buckets == first).all():
            self._keep_bucket(int(first), cells)
            return
        order = np.argsort(cells.buckets, kind="stable")
        ordered = Cells(*(part[order] for part in cells))
        starts = np.flatnonzero(np.diff(ordered.buckets, prepend=ordered.buckets[0] - 1))
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            part = Cells(*(one[start:stop].copy() for one in ordered))
            self._keep_bucket(int(part.buckets[0]), part)

    def _keep_bucket(self, bucket: int, cells: Cells) -> None:
        if bucket not in self._closed:
            bisect.insort(self._closed_buckets, bucket)
        self._closed.setdefault(bucket, []).append(cells)

    def _drop_bucket(self, last: int) -> None:
        """Drop the cells of a bucket; the clock skips no bucket that has any."""
        if last in self._closed:
            self._closed_buckets.remove(last)  # fast, as it is one of the first
        for cells in self._closed.pop(last, ()):
            np.subtract.at(self._refs, cells.slots, 1)
            self._closed_cells -= len(cells.slots)

    def _grow_open(self) -> None:
        """Double the capacity for open cells."""
        count = len(self._opened.cells.slots)
        self._check_room(self._closed_cells + count + 1)
        wider = self._room_for(2 * count)
        for part, old in zip(wider.cells, self._opened.cells, strict=True):
            part[:count] = old
        kernels.put_back(*wider, count)
        self._opened = wider

    def _check_room(self, cells: int) -> None:
        if cells > self._max_cells:
            raise FailedPrecondition(
                f"feed.max_cells: expected at most {self._max_cells} pairs of a key and a bucket, got more: "
                "use larger buckets (feed.every_seconds) or shorter windows, or allow more"
            )

    def _make_room(self, missing: int, wanted: Sequence[str]) -> None:
        """Free slots for new keys: reuse those of keys without data, then add new slots."""
        keep = {self._slots[key] for key in wanted if key in self._slots}
        for slot in np.flatnonzero(self._refs == 0).tolist():
            if self.keys[slot] and slot not in keep:
                del self._slots[self.keys[slot]]
                self.keys[slot] = ""
                self._free.append(slot)
        before = len(self.keys)
        if 2 * (missing + before - len(self._free)) <= before:
            return
        after = max(_FIRST_ROOM, 2 * before, 2 * (missing + before))
        more = after - before
        self.keys += [""] * more
        self._free = [*range(after - 1, before - 1, -1), *self._free]
        self._refs = np.concatenate([self._refs, np.zeros(more, np.int32)])
        self._marks = np.concatenate([self._marks, np.zeros(more, np.int64)])
        more_totals = self._no_totals(more)
        self._totals = Totals(*(np.concatenate(both) for both in zip(self._totals, more_totals, strict=True)))

    def _room_for(self, cells: int) -> Opened:
        return Opened(np.full(2 * cells, -1, np.int32), self._no_cells(cells))

    def _no_cells(self, count: int) -> Cells:
        measures, sums = len(self.plan.measures), self.plan.sums
        return Cells(
            np.zeros(count, np.int32),
            np.zeros(count, np.int64),
            np.zeros((count, measures), np.int64),
            np.zeros((count, sums)),
            np.zeros((count, sums)),
        )

    def _no_totals(self, count: int) -> Totals:
        shape = count, len(self.plan.totals)
        return Totals(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))


def _place(known: Sequence[Measure], wanted: Measure) -> int:
    """Return the index of a measure; -1 if it is missing."""
    return known.index(wanted) if wanted in known else -1


def _chosen(columns: Array, places: Sequence[int]) -> Array:
    """Return columns in another order, with zeros for missing ones."""
    made = np.zeros((len(columns), len(places)), columns.dtype)
    for to, place in enumerate(places):
        if place >= 0:
            made[:, to] = columns[:, place]
    return made


def no_rows(plan: BucketPlan, count: int) -> CountedRows:
    """Return empty rows as a buffer."""
    return CountedRows(
        np.full(count, -1, np.int32),
        np.zeros(count, np.int64),
        np.zeros((count, len(plan.measures)), np.uint8),
        np.zeros((count, plan.sums)),
    )


def run_once() -> None:
    """Compile or load all kernels before a feed needs them: count some rows, and restore a state."""
    plan = BucketPlan.of([Window(sum="x", seconds=1), Window(count=True, seconds=2)], 1)
    counters = Counters(plan, ahead_buckets=1, max_cells=10**6)
    for bucket in (1, 2, 9):
        rows = CountedRows(
            np.repeat(counters.slots_of(["key"]), JUMP_ROWS),
            np.full(JUMP_ROWS, bucket, np.int64),
            np.ones((JUMP_ROWS, len(plan.measures)), np.uint8),
            np.ones((JUMP_ROWS, plan.sums)),
        )
        list(counters.take(rows))
    again = Counters(plan, ahead_buckets=1, max_cells=10**6)
    again.restore(counters.state(), plan)
    list(again.finish())
