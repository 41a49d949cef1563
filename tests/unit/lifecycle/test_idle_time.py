"""Idle time: when it is tried, and when a call is better made elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from headrace.base import cpus
from headrace.lifecycle.idle_time import IdleCall, IdleTime, Progress, is_too_slow

START = Progress(100.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("now", "ran_before", "expected"),
    [
        (Progress(101.0, 0.005, 0.9), 0.0, True),  # hardly anything in the first second
        (Progress(101.0, 0.03, 0.9), 0.0, False),  # little, but it will do for a small load
        (Progress(101.0, 0.0, 0.1), 0.0, False),  # nothing, but it does not want to run: it reads files
        (Progress(104.0, 0.3, 3.6), 0.25, False),  # slow
        (Progress(104.0, 0.255, 3.7), 0.25, True),  # and now it starves
        (Progress(106.0, 0.3, 5.6), 0.25, True),  # slow for too long: a share would give it more
        (Progress(106.0, 0.9, 5.0), 0.7, False),  # a share would give it no more
    ],
)
def test_a_call_is_too_slow_if_it_starves_or_lasts_longer_than_with_a_share(
    now: Progress, ran_before: float, expected: bool
) -> None:
    before = START if now.at == 101.0 else Progress(now.at - 1, ran_before, now.waited - 0.9)
    assert is_too_slow(START.at, START, before, now) is expected


def test_the_parts_of_a_load_have_their_time_together() -> None:
    began, before = Progress(104.5, 0.0, 0.0), Progress(104.5, 0.0, 0.0)
    now = Progress(105.5, 0.05, 0.9)
    assert is_too_slow(100.0, began, before, now)
    assert not is_too_slow(104.5, began, before, now)


@pytest.fixture
def idle_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass in which the one processor is idle for this part of it."""
    told: dict[int, float] = {0: 0.0}
    now = [1000.0]

    def pass_time(share: float) -> None:
        now[0] += 1.0
        told[0] += share

    def idle_seconds() -> Mapping[int, float]:
        return dict(told)

    monkeypatch.setattr(cpus, "idle_seconds", idle_seconds)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return pass_time


@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (0.01, False), (0.03, True), (0.9, True)])
def test_a_little_idle_time_is_enough_to_try(
    idle_for: Callable[[float], None], share: float, expected: bool
) -> None:
    idle = IdleTime()
    assert not idle.is_enough()  # nothing is known yet
    idle.look()
    idle_for(share)
    assert idle.is_enough() is expected


def test_time_used_by_idle_calls_counts_as_idle(idle_for: Callable[[float], None]) -> None:
    idle = IdleTime()
    idle.look()
    idle.use(0.5)
    idle_for(0.0)
    assert idle.is_enough()


def test_idle_time_that_was_too_little_is_not_tried_again_for_a_while(
    idle_for: Callable[[float], None],
) -> None:
    idle = IdleTime()
    idle.look()
    idle_for(0.5)
    IdleCall(int, idle, 1000.0).drop()
    assert not idle.is_enough()
    for _ in range(5):
        idle_for(0.5)
    assert idle.is_enough()
