"""Add rows to cells and cells to totals, row by row, so that results do not depend on how rows are batched.

A cell holds the counts and sums of the rows of one key in one bucket. Sums are pairs of float64, of which the
second holds the rounding error of the first (Dekker, 1971). So a value that was added can be subtracted
again, whatever was added in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached

JUMP_ROWS = 16
"""Number of consecutive rows ahead of the clock after which the clock follows them."""

CLOCK, KNOWN, HELD, CELLS, LATE, TOO_LATE, REFUSED, AHEAD, LONGEST = range(9)
"""Indices into the state.

``CLOCK`` is the open bucket, and ``KNOWN`` whether it is known. ``HELD``, ``CELLS``, ``LATE``, ``TOO_LATE``
and ``REFUSED`` are numbers: of held rows, open cells, late rows, rows too late, and rows too far ahead.
``AHEAD`` is the limit of buckets ahead, and ``LONGEST`` the buckets of the longest window.
"""

STATES = 9
"""Length of the state."""

DONE, MOVED, JUMPED, FULL = range(4)
"""Results of ``scan``: all rows taken; a row moves the clock; the held rows move it; the cells are full."""

_MIX, _MIX_TOO = 0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D  # odd hash multipliers, as int64
_POSITIVE = 2**63 - 1


class CountedRows(NamedTuple):
    """Rows of a stream.

    Attributes:
        slots: Slots of the keys, int32 ``[N]``; -1 for a row that only moves the clock.
        buckets: Buckets of the rows' times, int64 ``[N]``.
        counted: 1 for measures that count the row, uint8 ``[N, M]``.
        numbers: Numbers added to the measures with a sum, float64 ``[N, S]``.
    """

    slots: Array
    buckets: Array
    counted: Array
    numbers: Array


class Cells(NamedTuple):
    """Counts and sums by key and bucket.

    Attributes:
        slots: Slots of the keys, int32 ``[K]``.
        buckets: Buckets, int64 ``[K]``.
        counts: Number of rows by measure, int64 ``[K, M]``.
        high: Sums, float64 ``[K, S]``.
        low: Rounding errors of the sums, float64 ``[K, S]``.
    """

    slots: Array
    buckets: Array
    counts: Array
    high: Array
    low: Array


class Opened(NamedTuple):
    """The open cells, with a hash table to find them.

    Attributes:
        places: Hash table of cell indices, int32, -1 if empty. Its length is a power of two, twice the
            capacity of cells.
        cells: Cells, up to the capacity.
    """

    places: Array
    cells: Cells


class Totals(NamedTuple):
    """Totals by slot.

    Attributes:
        counts: Number of rows, int64 ``[slots, T]``.
        high: Sums, float64 ``[slots, T]``.
        low: Rounding errors of the sums, float64 ``[slots, T]``.
    """

    counts: Array
    high: Array
    low: Array


@njit(inline="always")
def _added(high: float, low: float, more_high: float, more_low: float) -> Any:
    total = high + more_high
    part = total - high
    rest = (high - (total - part)) + (more_high - part) + low + more_low
    first = total + rest
    return first, rest - (first - total)


@njit(inline="always")
def _place(places: Array, cells: Cells, slot: int, bucket: int) -> int:
    """Return the index in the hash table where a cell is, or would be inserted."""
    mask = len(places) - 1
    place = ((slot * _MIX) ^ (bucket * _MIX_TOO)) & _POSITIVE
    place = (place ^ (place >> 29)) & mask
    while places[place] >= 0:
        at = places[place]
        if cells.slots[at] == slot and cells.buckets[at] == bucket:
            break
        place = (place + 1) & mask
    return place


@cached()
def put_back(places: Array, cells: Cells, count: int) -> None:
    """Insert cells into an empty hash table of twice their capacity."""
    for at in range(count):
        places[_place(places, cells, cells.slots[at], cells.buckets[at])] = at


@cached()
def scan(rows: CountedRows, start: int, opened: Opened, refs: Array, held: CountedRows, state: Array) -> Any:
    """Add rows to the open cells until the clock moves or the cells are full.

    Args:
        rows: Rows to add.
        start: Index of the first row to add.
        opened: Open cells.
        refs: Number of cells and held rows of each slot, int32.
        held: Rows ahead of the clock, with a capacity of ``JUMP_ROWS``.
        state: State, int64 ``[STATES]``.

    Returns:
        Index of the first row not taken, and the reason to stop.
    """
    for row in range(start, len(rows.buckets)):
        bucket, slot = rows.buckets[row], rows.slots[row]
        if not state[KNOWN] or bucket > state[CLOCK] + state[AHEAD]:
            _hold(rows, row, refs, held, state)
            if state[HELD] == JUMP_ROWS:
                return row + 1, JUMPED
            continue
        if state[HELD]:
            _refuse(refs, held, state)  # a row within range refutes the held ones
        if bucket > state[CLOCK]:
            return row, MOVED
        if slot < 0:
            continue
        if bucket <= state[CLOCK] - state[LONGEST]:
            state[TOO_LATE] += 1
            continue
        if not _count(rows, row, opened, refs, state):
            return row, FULL
        state[LATE] += bucket < state[CLOCK]
    return len(rows.buckets), DONE


@njit(inline="always")
def _hold(rows: CountedRows, row: int, refs: Array, held: CountedRows, state: Array) -> None:
    at = state[HELD]
    held.slots[at], held.buckets[at] = rows.slots[row], rows.buckets[row]
    held.counted[at] = rows.counted[row]
    held.numbers[at] = rows.numbers[row]
    if rows.slots[row] >= 0:
        refs[rows.slots[row]] += 1
    state[HELD] += 1


@njit(inline="always")
def _refuse(refs: Array, held: CountedRows, state: Array) -> None:
    for at in range(state[HELD]):
        if held.slots[at] >= 0:
            refs[held.slots[at]] -= 1
    state[REFUSED] += state[HELD]
    state[HELD] = 0


@njit(inline="always")
def _count(rows: CountedRows, row: int, opened: Opened, refs: Array, state: Array) -> bool:
    """Add a row to its cell; return False and do nothing if there is no room for a new cell."""
    counted, cells = False, opened.cells
    for measure in range(rows.counted.shape[1]):
        counted |= rows.counted[row, measure] != 0
    if not counted:
        return True
    place = _place(opened.places, cells, rows.slots[row], rows.buckets[row])
    at = opened.places[place]
    if at < 0:
        at = state[CELLS]
        if at == len(cells.slots):
            return False
        opened.places[place] = at
        state[CELLS] += 1
        cells.slots[at], cells.buckets[at] = rows.slots[row], rows.buckets[row]
        cells.counts[at], cells.high[at], cells.low[at] = 0, 0.0, 0.0
        refs[rows.slots[row]] += 1
    for measure in range(rows.counted.shape[1]):
        cells.counts[at, measure] += rows.counted[row, measure]
    for one in range(rows.numbers.shape[1]):
        cells.high[at, one], cells.low[at, one] = _added(
            cells.high[at, one], cells.low[at, one], rows.numbers[row, one], 0.0
        )
    return True


@cached()
def touch(slots: Array, marks: Array, mark: int, touched: Array, count: int) -> int:
    """Collect distinct slots.

    Args:
        slots: Slots to collect, int32.
        marks: Mark of the last call that collected each slot, int64.
        mark: Mark of this call.
        touched: Output for the slots, int32, with room for all of them.
        count: Number of slots already in the output.

    Returns:
        New number of slots in the output.
    """
    for slot in slots:
        if marks[slot] != mark:
            marks[slot] = mark
            touched[count] = slot
            count += 1
    return count


@cached()
def enter(cells: Cells, totals: Totals, table: Array, boundary: int) -> None:
    """Add cells to the totals whose windows include them at a boundary.

    Args:
        cells: Cells, all of buckets before the boundary.
        totals: Totals to add to.
        table: Definition of the totals; see ``BucketPlan.table``.
        boundary: First bucket that has not ended.
    """
    for at in range(len(cells.slots)):
        for total in range(len(table)):
            if cells.buckets[at] >= boundary - table[total, 2]:
                _move(cells, at, totals, total, table, 1)


@cached()
def leave(cells: Cells, totals: Totals, table: Array, boundary: int) -> None:
    """Subtract cells from the totals whose windows they have just left; see ``enter``."""
    for at in range(len(cells.slots)):
        for total in range(len(table)):
            if cells.buckets[at] == boundary - 1 - table[total, 2]:
                _move(cells, at, totals, total, table, -1)


@njit(inline="always")
def _move(cells: Cells, at: int, totals: Totals, total: int, table: Array, sign: int) -> None:
    slot, measure, one = cells.slots[at], table[total, 0], table[total, 1]
    totals.counts[slot, total] += sign * cells.counts[at, measure]
    if one < 0:
        return
    if totals.counts[slot, total] == 0:  # also discard rounding errors
        totals.high[slot, total] = totals.low[slot, total] = 0.0
        return
    totals.high[slot, total], totals.low[slot, total] = _added(
        totals.high[slot, total],
        totals.low[slot, total],
        sign * cells.high[at, one],
        sign * cells.low[at, one],
    )
