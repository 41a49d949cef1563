"""How many calls run side by side: as many as compute the most rows a second."""

from __future__ import annotations

import logging

import pytest

from headrace.batching.concurrency import Stretch, alternative, compare
from tests.side_by_side import SideBySide


def stretches(*rates: int) -> list[Stretch]:
    return [Stretch(rate, 1.0, 1.0) for rate in rates]


@pytest.mark.parametrize(
    ("rates", "better"),
    [
        ((100,), None),  # nothing to compare it with yet
        ((100, 109), False),  # a little more may be chance
        ((100, 111), None),
        ((100, 111, 100), None),
        ((100, 120, 115), False),  # the load rises
        ((120, 100), False),
        ((100, 111, 100, 109), False),
        ((100, 111, 100, 111), True),
        ((100, 150, 130, 150), True),
    ],
)
def test_another_number_must_be_better_by_a_tenth_whenever_it_is_tried(
    rates: tuple[int, ...], better: bool | None
) -> None:
    assert compare(stretches(*rates)) is better


@pytest.mark.parametrize(
    ("in_use", "most", "overlap", "more", "other"),
    [
        (12, 12, 12.0, False, 6),
        (12, 12, 7.6, False, 4),  # half of those that did run
        (12, 12, 2.0, False, 1),
        (12, 12, 1.5, False, 1),
        (12, 12, 1.4, False, None),  # hardly two at a time: nothing to gain
        (2, 12, 2.0, False, 1),
        (1, 12, 1.0, False, None),
        (12, 12, 12.0, True, None),
        (1, 12, 1.0, True, 2),
        (3, 12, 3.0, True, 6),
        (8, 12, 8.0, True, 12),
    ],
)
def test_twice_as_many_or_half_as_many_are_tried(
    in_use: int, most: int, overlap: float, more: bool, other: int | None
) -> None:
    assert alternative(in_use, most, overlap, more=more) == other


def lock(calls: int) -> float:
    """Calls that hold one lock: several are no faster than one."""
    return 1.0


def cores(calls: int) -> float:
    """Calls that have a core each."""
    return float(calls)


def test_calls_that_do_not_overlap_run_one_at_a_time_and_more_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = SideBySide(12, lock, 0.003, 0.00001)
    with caplog.at_level(logging.INFO):
        model.run(3.0, clients=16)
    assert model.limit.in_use == 1
    assert "uses 1 of its 12 instances" in caplog.messages[-1]
    alone = SideBySide(1, lock, 0.003, 0.00001).run(3.0, clients=16)
    assert model.run(3.0, clients=16) > 0.95 * alone


def test_calls_that_overlap_go_on_side_by_side() -> None:
    model = SideBySide(12, cores, 0.003, 0.00001)
    for _ in range(3):
        model.run(12.0, clients=16)
        assert model.limit.in_use == 12


def test_clients_that_seldom_ask_at_the_same_time_change_nothing() -> None:
    model = SideBySide(12, lock, 0.003, 0.00001)
    model.run(10.0, clients=2, pause_seconds=0.05)
    assert model.limit.in_use == model.limit.allowed == 12


def test_calls_that_come_to_overlap_run_side_by_side_again() -> None:
    model = SideBySide(12, lock, 0.003, 0.00001)
    model.run(3.0, clients=64)
    assert model.limit.in_use == 1
    model.speed = cores
    model.run(30.0, clients=64)
    assert model.limit.in_use > 1
    side_by_side = SideBySide(12, cores, 0.003, 0.00001, measures=False).run(3.0, clients=64)
    assert model.run(3.0, clients=64) > 0.85 * side_by_side


def test_trying_takes_a_hundredth_of_the_time() -> None:
    """The number that is tried is in force for as little time as that."""
    model = SideBySide(2, cores, 0.02, 0.0)
    tried = 0.0
    for _ in range(20_000):
        before = model.now
        model.run(0.01, clients=8)
        if model.limit.allowed != model.limit.in_use:
            tried += model.now - before
    assert 0.0 < tried < 0.015 * model.now
