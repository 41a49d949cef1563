"""Wait for something that another thread, task or process brings about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_SPARE_SECONDS = 5.0
_LEAST_SECONDS = 10.0
_time_limit = [time.monotonic() + 60.0]


def set_time_limit(seconds: float) -> None:
    """Note that the running test, which starts now, may take so many seconds."""
    _time_limit[0] = time.monotonic() + seconds


def seconds_left() -> float:
    """Return the seconds until just before the test's time limit, so that a failed wait names its line.

    A busy machine can make anything take minutes: waits have no shorter limit of their own, unless that limit
    is part of the behaviour under test.
    """
    return max(_time_limit[0] - _SPARE_SECONDS - time.monotonic(), _LEAST_SECONDS)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It does not hold before the test's time limit.
    """
    deadline = time.monotonic() + seconds_left()
    while not condition():
        assert time.monotonic() < deadline, "it did not come about before the test's time limit"
        time.sleep(0.01)


async def until_in_loop(condition: Callable[[], object], *, every: float = 0.0) -> None:
    """Let the event loop go on until a condition holds.

    Args:
        condition: What is checked.
        every: Seconds between two checks; 0 for one at each turn, which keeps the loop busy.

    Raises:
        AssertionError: It does not hold before the test's time limit.
    """
    deadline = time.monotonic() + seconds_left()
    while not condition():
        assert time.monotonic() < deadline, "it did not come about before the test's time limit"
        await asyncio.sleep(every)
