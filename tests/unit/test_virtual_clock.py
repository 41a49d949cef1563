"""The tests' own clock keeps what it promises."""

from __future__ import annotations

from headrace.base.clock import Clock
from tests.virtual_clock import VirtualClock


def test_timers_run_in_the_order_of_their_time_and_see_that_time() -> None:
    clock = VirtualClock(10.0)
    seen: list[tuple[str, float]] = []
    clock.call_later(2.0, lambda: seen.append(("second", clock.now())))
    clock.call_later(1.0, lambda: clock.call_later(0.5, lambda: seen.append(("first", clock.now()))))
    clock.advance(5.0)
    assert seen == [("first", 11.5), ("second", 12.0)]
    assert clock.now() == 15.0


def test_a_cancelled_timer_never_runs() -> None:
    clock = VirtualClock()
    seen: list[int] = []
    clock.call_later(1.0, seen.append, 1).cancel()
    assert clock.timers == 0
    clock.advance(2.0)
    assert seen == []


def test_ready_calls_run_in_order_and_without_time() -> None:
    clock: Clock = VirtualClock()
    seen: list[int] = []
    before = clock.now()
    clock.call_soon(seen.append, 1)
    clock.call_soon_threadsafe(seen.append, 2)
    assert isinstance(clock, VirtualClock)
    clock.run_ready()
    assert seen == [1, 2]
    assert clock.now() == before
