"""A thread that works behind the serving thread: bounded, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from headrace.base.background_queue import BackgroundQueue
from tests.waiting import seconds_left

LONG = 3600.0


def test_everything_is_worked_on_once_in_order_and_a_few_at_a_time() -> None:
    done: list[list[int]] = []
    queue = BackgroundQueue[int]("test", done.append, most=100, at_once=8, every_seconds=LONG)
    for one in range(50):
        queue.put(one)
    assert queue.close(30)
    assert [one for some in done for one in some] == list(range(50))
    assert max(map(len, done)) <= 8
    assert queue.dropped == 0


def test_those_beyond_the_limit_are_dropped_and_counted_while_the_thread_hangs() -> None:
    gate, entered, done = threading.Event(), threading.Event(), list[int]()

    def work(some: list[int]) -> None:
        if some:
            entered.set()
            gate.wait(120)
        done.extend(some)

    queue = BackgroundQueue("test", work, most=10, at_once=1, every_seconds=LONG)
    queue.put(0)
    assert entered.wait(120)
    for one in range(1, 31):
        queue.put(one)
    assert queue.dropped == 20
    assert not queue.close(0.01), "nobody waits longer for it than was said"
    queue.put(99)
    assert queue.dropped == 21
    gate.set()
    assert queue.close(30)
    assert done == list(range(11))


def test_work_that_fails_loses_its_things_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(some: list[int]) -> None:
        if 3 in some:
            raise ValueError("three")
        done.extend(some)

    queue = BackgroundQueue("test", work, most=10, at_once=1, every_seconds=LONG)
    with caplog.at_level(logging.ERROR):
        for one in range(6):
            queue.put(one)
        assert queue.close(30)
    assert done == [0, 1, 2, 4, 5]
    assert queue.dropped == 1
    assert "test failed" in caplog.text


def test_the_thread_wakes_up_periodically_and_at_once_on_hurry() -> None:
    looked: list[int] = []
    often = BackgroundQueue[int](
        "test", lambda some: looked.append(len(some)), most=9, at_once=9, every_seconds=0.01
    )
    until = time.monotonic() + seconds_left()
    while len(looked) < 3:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert often.close(30)
    seen = threading.Event()
    seldom = BackgroundQueue[int]("test", lambda _: seen.set(), most=9, at_once=9, every_seconds=LONG)
    seldom.hurry()
    assert seen.wait(120)
    assert seldom.close(30)
