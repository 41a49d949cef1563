"""The event loop of a version's coroutines runs until it is closed, and always ends then."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest

from headrace.runtimes.model_loop import ModelLoop
from tests.waiting import until


def ended(before: set[threading.Thread]) -> bool:
    return not any(thread.name == "model loop" for thread in set(threading.enumerate()) - before)


async def exits_when_cancelled(started: threading.Event) -> None:
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        raise SystemExit


def test_an_exit_of_a_cancelled_task_does_not_keep_the_loop_from_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = set(threading.enumerate())
    loop, started = ModelLoop("the model m"), threading.Event()
    real = loop.start()
    asyncio.run_coroutine_threadsafe(exits_when_cancelled(started), real)
    until(started.is_set)
    loop.close()
    until(real.is_closed)
    until(lambda: ended(before))
    assert "a task of the model m raised SystemExit" in caplog.text


def test_a_model_cannot_stop_its_loop() -> None:
    loop = ModelLoop("the model m")
    real = loop.start()

    async def stops() -> None:
        real.stop()

    async def answers() -> int:
        return 7

    loop.result(stops)
    assert loop.result(answers) == 7
    loop.close()
    until(real.is_closed)


async def ignores_cancellation(started: threading.Event) -> None:
    started.set()
    while True:
        with suppress(BaseException):  # the mistake under test
            await asyncio.Event().wait()


def test_a_task_that_ignores_its_cancellation_does_not_keep_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = set(threading.enumerate())
    loop, started = ModelLoop("the model m"), threading.Event()
    real = loop.start()
    asyncio.run_coroutine_threadsafe(ignores_cancellation(started), real)
    until(started.is_set)
    real.time = itertools.count(0.0, 10.0).__next__  # type: ignore[method-assign]  # each look is 10 s later
    loop.close()
    until(real.is_closed)
    until(lambda: ended(before))
    assert "the model m: 1 of its tasks still ran 5 s after their cancellation" in caplog.text
