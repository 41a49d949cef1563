"""Coroutines whose time is over are cancelled; those that ignore it are left alone, within a bound."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest

from headrace.base.errors import DeadlineExceeded
from headrace.batching import cancelling
from headrace.batching.cancelling import Cancelling
from headrace.batching.request import Origin


async def ignores_until(end: asyncio.Event) -> None:
    while not end.is_set():
        with suppress(asyncio.CancelledError):
            await end.wait()


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def make_time_fly() -> None:
    """Let 10 s pass whenever the running loop looks at its clock."""
    asyncio.get_running_loop().time = itertools.count(0.0, 10.0).__next__  # type: ignore[method-assign]


def test_a_result_and_an_error_are_passed_on() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        calls = Cancelling(Origin("m", 1))
        assert await calls.result(asyncio.sleep(0, 7), float("inf")) == 7
        with pytest.raises(ValueError, match="no"):
            await calls.result(fails(), 60.0)

    asyncio.run(scenario())


def test_the_end_of_a_cancelled_call_is_waited_for() -> None:
    async def scenario() -> None:
        cleaned = False

        async def cleans() -> None:
            nonlocal cleaned
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned = True
                raise ValueError("nobody waits for it")

        with pytest.raises(DeadlineExceeded):
            await Cancelling(Origin("m", 1)).result(cleans(), 0.0)
        assert cleaned

    asyncio.run(scenario())


def test_calls_that_ignore_it_are_left_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancelling, "MOST_LEFT", 2)

    async def scenario() -> None:
        make_time_fly()
        calls, ends = Cancelling(Origin("m", 1)), [asyncio.Event() for _ in range(4)]
        for end in ends[:2]:
            with pytest.raises(DeadlineExceeded):
                await calls.result(ignores_until(end), 1.0)
        third = asyncio.create_task(calls.result(ignores_until(ends[2]), 1.0))
        await turns()
        assert not third.done()
        for end in ends[:3]:
            end.set()
        with pytest.raises(DeadlineExceeded):
            await third
        with pytest.raises(DeadlineExceeded):
            await calls.result(ignores_until(ends[3]), 1.0)
        ends[3].set()
        await turns()

    asyncio.run(scenario())
    assert caplog.text.count("m version 1: a call of predict ignores that it was cancelled 5 s ago") == 1
