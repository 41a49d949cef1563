"""Counters against what they mean: for each boundary, all rows that came before it are looked at again."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.archive.model.window_settings import Window
from headrace.archive.windows.bucket_plan import BucketPlan
from headrace.archive.windows.counters import Changed, Counters
from headrace.archive.windows.kernels import JUMP_ROWS, CountedRows
from headrace.base.errors import ConfigError, FailedPrecondition

WINDOWS = {
    "rows_4": Window(count=True, seconds=4),
    "rows_1": Window(count=True, seconds=1),
    "good_3": Window(count=True, seconds=3, where=("kind", "good")),
    "sum_3": Window(sum="x", seconds=3),
    "good_sum_7": Window(sum="x", seconds=7, where=("kind", "good")),
    "mean_3": Window(mean="x", seconds=3),
    "rate_4": Window(count=True, seconds=4, per_seconds=60),
}
PLAN = BucketPlan.of(WINDOWS.values(), 1)
AHEAD = 50


@pytest.fixture(scope="module")
def warm() -> None:
    """The kernels are compiled or loaded."""
    take(new(), [Row("a", 10)] * JUMP_ROWS + [Row("a", 12)])


class Row(NamedTuple):
    key: str
    bucket: int
    x: float = 1.0
    good: bool = True


Written = tuple[int, str, dict[str, float]]


def rows_of(counters: Counters, rows: Sequence[Row]) -> CountedRows:
    slots = [int(counters.slots_of([row.key])[0]) if row.key else -1 for row in rows]
    keys = sorted({row.key for row in rows} - {""})
    by_key = dict(zip(keys, counters.slots_of(keys).tolist(), strict=True))
    slots = [by_key.get(row.key, -1) for row in rows]
    counted = [[measure.where is None or row.good for measure in PLAN.measures] for row in rows]
    numbers = [
        [row.x if one.where is None or row.good else 0.0 for one in PLAN.measures if one.column]
        for row in rows
    ]
    return CountedRows(
        np.array(slots, np.int32),
        np.array([row.bucket for row in rows], np.int64),
        np.array(counted, np.uint8).reshape(len(rows), len(PLAN.measures)),
        np.array(numbers, np.float64).reshape(len(rows), PLAN.sums),
    )


def new() -> Counters:
    return Counters(PLAN, ahead_buckets=AHEAD, max_cells=10_000)


def written(counters: Counters, changes: Iterator[Changed]) -> list[Written]:
    found = []
    for changed in changes:
        values = PLAN.values(WINDOWS, *counters.totals(changed.slots))
        for place, slot in enumerate(changed.slots.tolist()):
            line = {name: value[place].item() for name, value in values.items()}
            found.append((changed.boundary, counters.keys[slot], line))
    return found


def take(counters: Counters, rows: Sequence[Row], cuts: Sequence[int] = ()) -> list[Written]:
    found, places = [], [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, stop in itertools.pairwise(places):
        found += written(counters, counters.take(rows_of(counters, rows[start:stop])))
    return found


def value_of(rows: Sequence[Row], key: str, boundary: int) -> dict[str, float]:
    """The definition: of the rows that came before a boundary, those in the window before it."""

    def some(name: str) -> list[Row]:
        window = WINDOWS[name]
        return [
            row
            for row in rows
            if row.key == key
            and boundary - window.seconds <= row.bucket < boundary
            and (window.where is None or row.good)
        ]

    found: dict[str, float] = {}
    for name, window in WINDOWS.items():
        inside = some(name)
        if window.count:
            found[name] = len(inside) * (window.per_seconds / window.seconds or 1)
        else:
            found[name] = math.fsum(row.x for row in inside)
            if window.mean:
                found[name] /= max(1, len(inside))
    return found


def changes_of(lines: Sequence[Written]) -> list[Written]:
    """The lines that say something new of their key: before the first, all is 0."""
    last: dict[str, dict[str, float]] = {}
    found = []
    for boundary, key, value in sorted(lines, key=lambda line: line[:2]):
        if value != last.get(key, value_of([], key, 0)):
            found.append((boundary, key, value))
            last[key] = value
    return found


def expected(rows: Sequence[Row]) -> list[Written]:
    """All rows of the table that are written, by the definition, of rows that are never far ahead."""
    lines: list[Written] = []
    clock = min(row.bucket for row in rows[:JUMP_ROWS])
    ends = max(row.bucket for row in rows) + 1
    keys = sorted({row.key for row in rows} - {""})
    for at in range(len(rows) + 1):
        until = rows[at].bucket if at < len(rows) else ends
        for boundary in range(clock + 1, until + 1):
            for key in keys:
                lines.append((boundary, key, value_of(rows[:at], key, boundary)))
        clock = max(clock, until)
    return lines


steps = st.tuples(
    st.integers(0, 3), st.integers(-9, 0), st.sampled_from("abc"), st.integers(-3, 3), st.booleans()
)


def stream(drawn: Sequence[tuple[int, int, str, int, bool]]) -> list[Row]:
    clock, rows = 1000, []
    for step, late, key, x, good in drawn:
        clock += step * step * step  # mostly the next bucket, sometimes beyond all windows
        rows.append(Row(key, clock + late, float(x), good))
    return rows


@pytest.mark.rest
@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=JUMP_ROWS, max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_written_rows_follow_the_definition(drawn: list, cuts: list[int]) -> None:
    rows, counters = stream(drawn), new()
    found = take(counters, rows, cuts) + written(counters, counters.finish())
    assert changes_of(found) == changes_of(expected(rows))


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_how_rows_are_cut_into_blocks_changes_nothing(drawn: list, cuts: list[int]) -> None:
    rows = stream(drawn)
    whole, cut = new(), new()
    one = take(whole, rows) + written(whole, whole.finish())
    other = take(cut, rows, cuts) + written(cut, cut.finish())
    assert sorted(one, key=lambda line: line[:2]) == sorted(other, key=lambda line: line[:2])
    assert whole.told == cut.told


def test_a_sum_is_what_it_was_when_a_large_number_has_left_it() -> None:
    counters = new()
    rows = [Row("a", 10)] * JUMP_ROWS + [
        Row("a", 11, 1e16),
        Row("a", 11, 0.5),
        Row("a", 13, 3.0),
        Row("a", 14),
    ]
    found = {boundary: value for boundary, _, value in take(counters, rows)}
    assert found[14]["sum_3"] == 1e16 + 4  # rounded only here
    last = written(counters, counters.finish())
    assert last[0][2]["sum_3"] == 4.0
    assert last[0][2]["mean_3"] == 2.0


def test_a_key_whose_windows_are_empty_is_written_as_zeros_and_then_let_go() -> None:
    counters = new()
    take(counters, [Row("a", 10)] * JUMP_ROWS)
    found = take(counters, [Row("b", 20)])
    assert [(boundary, key) for boundary, key, _ in found if key == "a"][-1] == (18, "a")
    assert found[-1][2] == value_of([], "a", 0)
    assert [counters.keys[slot] for slot in counters.counted_slots] == ["b"]


def test_keys_that_are_gone_make_room_for_new_ones() -> None:
    counters, buckets = new(), 400
    take(counters, [Row("first", 0)] * JUMP_ROWS)
    for bucket in range(buckets):
        take(counters, [Row(f"{bucket}-{one}", bucket) for one in range(100)])
    assert len(counters.keys) <= 4096  # 8 buckets of 100 keys are in memory at a time


def test_one_row_with_a_wrong_clock_neither_counts_nor_moves_the_clock() -> None:
    counters = new()
    take(counters, [Row("a", 10)] * JUMP_ROWS)
    assert take(counters, [Row("b", 10**12), Row("c", 11), Row("d", -(10**12))])[0][0] == 11
    assert counters.clock == 11
    told = counters.told
    assert (told.refused, told.too_late, told.held) == (1, 1, 0)
    lines = written(counters, counters.finish())
    assert {key for _, key, _ in lines} == {"a", "c"}


def test_the_clock_follows_rows_that_agree_and_counts_them_all() -> None:
    counters = new()
    take(counters, [Row("a", 10)] * JUMP_ROWS)
    assert take(counters, [Row("b", 1000)] * (JUMP_ROWS - 1)) == []
    found = take(counters, [Row("b", 1001)])  # now there are enough
    assert found[-1] == (1001, "b", {**value_of([Row("b", 1000)] * (JUMP_ROWS - 1), "b", 1001)})
    assert counters.clock == 1001
    assert (18, "a", value_of([], "a", 0)) in found  # the windows were left one by one
    assert counters.told.refused == 0


def test_a_first_row_with_a_wrong_clock_is_refused() -> None:
    counters = new()
    take(counters, [Row("z", 10**12), *[Row("a", 10)] * JUMP_ROWS])
    assert counters.clock == 10
    assert counters.told.refused == 1


def steps_of_a_gap(buckets: int) -> int:
    """Count the interpreter's instructions in these counters until all windows have left so many buckets."""
    plan = BucketPlan.of([Window(count=True, seconds=buckets * one // 32) for one in range(1, 33)], 1)
    counters = Counters(plan, ahead_buckets=10**6, max_cells=10**6)
    slots = np.full(buckets, counters.slots_of(["a"])[0], np.int32)
    counted, nothing = np.ones((buckets, 1), np.uint8), np.zeros((buckets, 0))
    assert len(list(counters.take(CountedRows(slots, np.arange(buckets), counted, nothing)))) == buckets - 1
    later = CountedRows(np.array([-1], np.int32), np.array([3 * buckets]), counted[:1], nothing[:1])
    changes, steps = steps_in(Counters.take.__code__.co_filename, lambda: list(counters.take(later)))
    assert changes[-1].boundary == 2 * buckets
    return steps


Result = TypeVar("Result")


def steps_in(file: str, work: Callable[[], Result]) -> tuple[Result, int]:
    """Do something, and count the instructions of the interpreter in a file meanwhile."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = work()
    finally:
        sys.settrace(before)
    return result, steps


@pytest.mark.exact
def test_a_gap_costs_what_leaves_the_windows(warm: None) -> None:
    del warm
    few, many = steps_of_a_gap(100), steps_of_a_gap(1000)
    assert 100 * 100 < few < many < 11 * few


def test_a_row_without_a_key_moves_the_clock() -> None:
    counters = new()
    take(counters, [Row("a", 10)] * JUMP_ROWS)
    assert {key for _, key, _ in take(counters, [Row("", 30)])} == {"a"}
    assert counters.clock == 30
    assert len(counters.counted_slots) == 0


def test_more_keys_and_buckets_than_there_is_room_for_are_refused() -> None:
    counters = Counters(PLAN, ahead_buckets=AHEAD, max_cells=50)
    take(counters, [Row("a", 10)] * JUMP_ROWS)
    rows = [Row(f"{one}", bucket) for bucket in range(10, 17) for one in range(20)]
    with pytest.raises(FailedPrecondition, match=r"feed\.max_cells: expected at most 50 pairs"):
        take(counters, rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, min_size=1, max_size=60), st.integers(0, 60))
def test_counters_restored_from_a_state_continue_identically(drawn: list, cut: int) -> None:
    rows = stream(drawn)
    whole, first, second = new(), new(), new()
    wanted = take(whole, rows) + written(whole, whole.finish())
    found = take(first, rows[:cut])
    second.restore(first.state(), PLAN)
    found += take(second, rows[cut:]) + written(second, second.finish())
    assert sorted(found, key=lambda line: line[:2]) == sorted(wanted, key=lambda line: line[:2])
    assert second.told == whole.told
    for name, array in whole.state().items():
        if name.startswith("totals") or name == "state":
            np.testing.assert_array_equal(np.sort(array, axis=0), np.sort(second.state()[name], axis=0))


def test_a_window_that_is_new_begins_with_the_buckets_that_are_kept() -> None:
    first = Counters(BucketPlan.of([Window(count=True, seconds=4)], 1), ahead_buckets=AHEAD, max_cells=1000)
    plan = BucketPlan.of(
        [Window(count=True, seconds=2), Window(sum="x", seconds=9), Window(count=True, seconds=4)], 1
    )
    counted = np.ones((JUMP_ROWS + 3, 1), np.uint8)
    buckets = np.array([10] * JUMP_ROWS + [11, 12, 13])
    slots = np.repeat(first.slots_of(["a"]), len(buckets))
    list(first.take(CountedRows(slots, buckets, counted, np.zeros((len(buckets), 0)))))
    second = Counters(plan, ahead_buckets=AHEAD, max_cells=1000)
    second.restore(first.state(), first.plan)
    list(second.finish())
    counts, sums = second.totals(second.slots_of(["a"]))
    assert counts.tolist() == [[2, 0, JUMP_ROWS + 3]]
    assert sums.tolist() == [[0.0, 0.0, 0.0]]


def counted(counters: Counters, rows: Sequence[tuple[str, int]]) -> list[Changed]:
    """Take rows that are only counted."""
    keys = list(dict.fromkeys(key for key, _ in rows))
    by_key = dict(zip(keys, counters.slots_of(keys).tolist(), strict=True))
    slots = np.array([by_key[key] for key, _ in rows], np.int32)
    buckets = np.array([bucket for _, bucket in rows], np.int64)
    nothing = np.zeros((len(rows), 0))
    return list(counters.take(CountedRows(slots, buckets, np.ones((len(rows), 1), np.uint8), nothing)))


def counting(seconds: int, *, ahead_buckets: int = AHEAD, max_cells: int = 10_000) -> Counters:
    plan = BucketPlan.of([Window(count=True, seconds=seconds)], 1)
    return Counters(plan, ahead_buckets=ahead_buckets, max_cells=max_cells)


def test_only_what_has_changed_is_written() -> None:
    counters = counting(3)
    rows = [("a", 10)] * JUMP_ROWS + [("a", bucket) for bucket in range(11, 20)]
    changes = counted(counters, [*rows, ("b", 20)])
    # From 14 on one row enters and one leaves at each boundary.
    found = [(one.boundary, [counters.keys[slot] for slot in one.slots]) for one in changes]
    assert found == [(boundary, ["a"]) for boundary in (11, 12, 13, 14)]


def test_how_far_ahead_a_row_may_be_is_that_of_the_settings_and_not_of_the_state() -> None:
    first, second = counting(4, ahead_buckets=50), counting(4, ahead_buckets=5)
    counted(first, [("a", 10)] * JUMP_ROWS)
    second.restore(first.state(), first.plan)
    counted(second, [("a", 20), ("a", 11)])
    assert (second.clock, second.told.refused) == (11, 1)


def test_how_late_a_row_may_be_is_that_of_the_settings_and_not_of_the_state() -> None:
    first, second = counting(4), counting(30)
    counted(first, [("a", 10)] * JUMP_ROWS + [("a", 30)])
    second.restore(first.state(), first.plan)
    counted(second, [("a", 15)])
    list(second.finish())
    assert second.told.too_late == 0
    assert second.totals(second.slots_of(["a"]))[0].tolist() == [[2]]  # those of 10 had left all windows


def test_cells_that_left_all_windows_are_dropped() -> None:
    first, second = counting(30), counting(4)
    counted(first, [("a", 10)] * JUMP_ROWS + [("b", 20), ("b", 21)])
    second.restore(first.state(), first.plan)
    list(second.finish())
    assert [second.keys[slot] for slot in second.counted_slots] == ["b"]
    assert second.totals(second.slots_of(["a", "b"]))[0].tolist() == [[0], [2]]


def test_a_state_with_more_open_cells_than_the_first_capacity_is_restored() -> None:
    first, second = counting(4), counting(4)
    keys = [f"{one}" for one in range(5000)]
    counted(first, [("a", 10)] * JUMP_ROWS + [(key, 10) for key in keys])
    second.restore(first.state(), first.plan)
    counted(second, [(key, 10) for key in keys])
    list(second.finish())
    assert (second.totals(second.slots_of(keys))[0] == 2).all()


def test_one_bucket_with_more_keys_than_there_is_room_for_is_refused_before_it_is_over() -> None:
    counters = counting(4, max_cells=1500)
    with pytest.raises(FailedPrecondition, match=r"feed\.max_cells: expected at most 1500 pairs"):
        counted(counters, [("a", 10)] * JUMP_ROWS + [(f"{one}", 10) for one in range(3000)])


def test_an_invalid_state_of_counters_is_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint: it holds no counters"):
        new().restore({"weights": np.zeros(3)}, PLAN)
