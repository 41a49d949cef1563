"""Rows into cells, and cells into totals, row by row: how the rows are cut into blocks changes nothing.

A cell is what the rows of one key in one bucket came to. Sums are pairs of float64 of which the second holds
what the first has no room for (Dekker, 1971): what was added can be taken away again, whatever came between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from headrace.compiled import cached
from headrace.tensors import Array

JUMP_ROWS = 16
"""How many rows in a row must be ahead of the clock for it to follow them."""

CLOCK, KNOWN, HELD, CELLS, LATE, TOO_LATE, REFUSED, AHEAD, LONGEST = range(9)
"""Places in the state: the open bucket and whether it is known; how many rows are held, and cells open; how
many rows were late, too late, and too far ahead; how far ahead one may be; how long the longest window is."""

STATES = 9
"""How many of them there are."""

DONE, MOVED, JUMPED, FULL = range(4)
"""Why ``scan`` stopped: all rows are taken; a row moves the clock; the held rows do; there is no room."""

_MIX, _MIX_TOO = 0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D  # odd numbers of int64, to spread places
_POSITIVE = 2**63 - 1


class Rows(NamedTuple):
    """Rows of a stream.

    Attributes:
        slots: Of their keys, int32 ``[N]``; -1 for a row that only moves the clock.
        buckets: When they happened, int64 ``[N]``.
        counted: Which measures they count in, uint8 ``[N, M]``.
        numbers: What they add to the measures with a sum, float64 ``[N, S]``.
    """

    slots: Array
    buckets: Array
    counted: Array
    numbers: Array


class Cells(NamedTuple):
    """Cells.

    Attributes:
        slots: Of their keys, int32 ``[K]``.
        buckets: int64 ``[K]``.
        counts: Rows by measure, int64 ``[K, M]``.
        high: The sums, float64 ``[K, S]``.
        low: What they lack, float64 ``[K, S]``.
    """

    slots: Array
    buckets: Array
    counts: Array
    high: Array
    low: Array


class Opened(NamedTuple):
    """The cells that rows go into.

    Attributes:
        places: Finds them: int32, twice as long as there is room for cells, a power of two; -1 for nothing.
        cells: Room for them.
    """

    places: Array
    cells: Cells


class Totals(NamedTuple):
    """What is kept by slot.

    Attributes:
        counts: Rows, int64 ``[slots, T]``.
        high: The sums, float64 ``[slots, T]``.
        low: What they lack, float64 ``[slots, T]``.
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
    """The place where a cell is, or would be."""
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
    """Have cells be found; there are twice as many places as cells, all of them empty."""
    for at in range(count):
        places[_place(places, cells, cells.slots[at], cells.buckets[at])] = at


@cached()
def scan(rows: Rows, start: int, opened: Opened, refs: Array, held: Rows, state: Array) -> Any:
    """Take rows into the open cells, until the clock moves.

    Args:
        rows: The rows.
        start: The first of them.
        opened: The open cells.
        refs: How many cells and held rows each slot has, int32.
        held: Rows that are ahead of the clock; room for ``JUMP_ROWS``.
        state: See ``STATES``; int64.

    Returns:
        The first row that is not taken, and why.
    """
    for row in range(start, len(rows.buckets)):
        bucket, slot = rows.buckets[row], rows.slots[row]
        if not state[KNOWN] or bucket > state[CLOCK] + state[AHEAD]:
            _hold(rows, row, refs, held, state)
            if state[HELD] == JUMP_ROWS:
                return row + 1, JUMPED
            continue
        if state[HELD]:
            _refuse(refs, held, state)  # the rows behind them do not agree
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
def _hold(rows: Rows, row: int, refs: Array, held: Rows, state: Array) -> None:
    at = state[HELD]
    held.slots[at], held.buckets[at] = rows.slots[row], rows.buckets[row]
    held.counted[at] = rows.counted[row]
    held.numbers[at] = rows.numbers[row]
    if rows.slots[row] >= 0:
        refs[rows.slots[row]] += 1
    state[HELD] += 1


@njit(inline="always")
def _refuse(refs: Array, held: Rows, state: Array) -> None:
    for at in range(state[HELD]):
        if held.slots[at] >= 0:
            refs[held.slots[at]] -= 1
    state[REFUSED] += state[HELD]
    state[HELD] = 0


@njit(inline="always")
def _count(rows: Rows, row: int, opened: Opened, refs: Array, state: Array) -> bool:
    """Count a row in its cell; False, and nothing is done, if there is no room for a new one."""
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
    """Note slots, each once.

    Args:
        slots: Which, int32.
        marks: By slot: the mark of when it was noted last, int64.
        mark: That of this time.
        touched: Where they are noted, int32; room for all of them.
        count: How many are noted already.

    Returns:
        How many are noted then.
    """
    for slot in slots:
        if marks[slot] != mark:
            marks[slot] = mark
            touched[count] = slot
            count += 1
    return count


@cached()
def enter(cells: Cells, totals: Totals, table: Array, boundary: int) -> None:
    """Add cells to the totals whose windows they are in, at the end of a bucket.

    Args:
        cells: All of buckets before the boundary.
        totals: What is added to.
        table: What the totals are; see ``Plan.table``.
        boundary: The first bucket that is not over.
    """
    for at in range(len(cells.slots)):
        for total in range(len(table)):
            if cells.buckets[at] >= boundary - table[total, 2]:
                _move(cells, at, totals, total, table, 1)


@cached()
def leave(cells: Cells, totals: Totals, table: Array, boundary: int) -> None:
    """Take cells away from the totals whose windows have just left them; see ``enter``."""
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
    if totals.counts[slot, total] == 0:  # nothing is left, not even what was rounded
        totals.high[slot, total] = totals.low[slot, total] = 0.0
        return
    totals.high[slot, total], totals.low[slot, total] = _added(
        totals.high[slot, total],
        totals.low[slot, total],
        sign * cells.high[at, one],
        sign * cells.low[at, one],
    )
