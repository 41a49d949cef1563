"""Limits of callers: decided by numbers, counted in memory that several processes share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import pytest

from headrace.access.caller import CallerLimits, taken, wait
from headrace.access.shared_meters import CELLS, Meters, shared_memory
from headrace.base.errors import OverLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("due", "now", "amount", "rate", "expected"),
    [
        (0.0, 10.0, 1, 10, 10.1),
        (10.1, 10.0, 1, 10, 10.2),
        (20.0, 10.0, 5, 10, 20.5),
        (9.0, 10.0, 100, 10, 20.0),
    ],
)
def test_taken_amounts_are_earned_one_after_the_other_from_now_on(
    due: float, now: float, amount: float, rate: float, expected: float
) -> None:
    assert taken(due, now, amount, rate) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("due", "now", "burst", "expected"),
    [(0.0, 10.0, 1.0, 0.0), (10.5, 10.0, 1.0, 0.0), (11.0, 10.0, 1.0, 0.0), (11.5, 10.0, 1.0, 0.5)],
)
def test_a_burst_may_be_owed(due: float, now: float, burst: float, expected: float) -> None:
    assert wait(due, now, burst) == pytest.approx(expected)


def test_a_rate_is_kept_over_time_and_the_error_names_the_retry_delay() -> None:
    clock = Clock()
    meters, limits = Meters(now=clock), CallerLimits(requests_per_second=10, burst_seconds=0.5)
    let_in, said = 0, list[OverLimit]()
    for _ in range(2000):
        try:
            meters.enter("a", limits)
            let_in += 1
        except OverLimit as error:
            said.append(error)
        clock.now += 0.01
    assert all(0 < one.retry_after_seconds <= 0.1 + 1e-6 for one in said)
    assert all("10 requests per second" in one.message for one in said)
    assert 200 <= let_in <= 207
    meters.enter("b", limits)  # another's is another's


def test_rows_are_paid_for_after_they_were_let_through() -> None:
    clock = Clock()
    meters, limits = Meters(now=clock), CallerLimits(rows_per_second=100)
    meters.rows("a", limits, 1000)
    with pytest.raises(OverLimit) as refused:
        meters.rows("a", limits, 1)
    assert refused.value.retry_after_seconds == pytest.approx(9.0)
    clock.now += 9.0
    meters.rows("a", limits, 1)


def test_streams_are_slowed_down() -> None:
    clock = Clock()
    meters, limits = Meters(now=clock), CallerLimits(requests_per_second=10, burst_seconds=0.1)
    waited = 0.0
    for _ in range(101):
        seconds = meters.next_message("a", limits)
        waited += seconds
        clock.now += seconds
    assert waited == pytest.approx(9.9, abs=0.2)
    assert meters.next_message("a", CallerLimits(rows_per_second=1)) == 0.0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_processes_count_together(workers: int) -> None:
    clock = Clock()
    memory = shared_memory(workers)
    try:
        processes = [Meters(memory, worker, workers, clock) for worker in range(workers)]
        limits = CallerLimits(requests_per_second=100, concurrent_requests=8)
        let_in = 0
        for turn in range(100_000):
            meters = processes[turn % workers]
            try:
                meters.enter("a", limits)
            except OverLimit:
                pass
            else:
                let_in += 1
                meters.leave("a", limits)
            clock.now += 0.0001
        assert 1090 <= let_in <= 1110  # ten seconds' worth, and a burst
    finally:
        os.close(memory)


def test_calls_under_way_are_counted_over_processes_and_those_of_one_that_died_are_forgotten() -> None:
    clock = Clock()
    memory = shared_memory(2)
    try:
        first, second = (Meters(memory, worker, 2, clock) for worker in range(2))
        limits = CallerLimits(concurrent_requests=3)
        first.enter("a", limits)
        second.enter("a", limits)
        second.enter("a", limits)
        with pytest.raises(OverLimit, match="has 3 calls in progress"):
            first.enter("a", limits)
        second.leave("a", limits)
        first.enter("a", limits)
        successor = Meters(memory, 0, 2, clock)  # in the place of one that has died
        successor.enter("a", limits)
        successor.enter("a", limits)
        with pytest.raises(OverLimit):
            successor.enter("a", limits)
    finally:
        os.close(memory)


def are_refused(meters: Meters, callers: Iterable[str], limits: CallerLimits) -> int:
    """How many of them are, of whom each asks once."""
    count = 0
    for caller in callers:
        try:
            meters.enter(caller, limits)
        except OverLimit:
            count += 1
    return count


ONCE = CallerLimits(requests_per_second=1.0, burst_seconds=1.5)


@pytest.mark.parametrize(("greedy", "most_refused"), [(100, 5), (1000, 100)])
def test_a_caller_within_its_limits_is_hardly_ever_refused_because_of_others(
    greedy: int, most_refused: int
) -> None:
    """Of 10,000; he would have to be counted at both places with some that are over their limits."""
    clock = Clock()
    meters = Meters(now=clock)
    for number in range(greedy):
        for _ in range(4):
            with suppress(OverLimit):
                meters.enter(f"jwt:greedy {number}", ONCE)
        with pytest.raises(OverLimit):
            meters.enter(f"jwt:greedy {number}", ONCE)
    others = [f"jwt:other {number}" for number in range(10_000)]
    refused = 0
    for start in range(0, len(others), 100):  # those who have asked are over none of their limits for long
        refused += are_refused(meters, others[start : start + 100], CallerLimits(1000.0))
    assert refused <= most_refused
    clock.now += 10.0
    assert not are_refused(meters, others, CallerLimits(1e6)), "what is earned again is forgotten"


def test_tokens_never_have_a_key_refused() -> None:
    clock = Clock()
    meters = Meters(now=clock)
    many = CallerLimits(requests_per_second=1e-3, concurrent_requests=1)
    assert are_refused(meters, (f"jwt:{number}" for number in range(CELLS)), many) > 0
    assert not are_refused(meters, (f"key-{number}" for number in range(100)), many)


def test_all_processes_count_a_caller_in_the_same_unpredictable_cells() -> None:
    memory, other = shared_memory(2), shared_memory(1)
    try:
        first, second = (Meters(memory, worker, 2) for worker in range(2))
        elsewhere = Meters(other, 0, 1)
        callers = [f"jwt:{number}" for number in range(1000)]
        places = [first._find(caller) for caller in callers]
        assert [second._find(caller) for caller in reversed(callers)] == places[::-1]
        same = sum(
            elsewhere._find(caller)[0] == place[0] for caller, place in zip(callers, places, strict=True)
        )
        assert same < 10
    finally:
        os.close(memory)
        os.close(other)


def test_the_cache_of_callers_cells_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.access.shared_meters._MOST_KNOWN", 10)
    meters, limits = Meters(), CallerLimits(concurrent_requests=1)
    meters.enter("a", limits)
    for number in range(25):
        meters.enter(f"jwt:{number}", limits)
    assert len(meters._places) <= 10
    with pytest.raises(OverLimit):
        meters.enter("a", limits)
    meters.leave("a", limits)
    meters.enter("a", limits)
