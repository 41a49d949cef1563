"""Wait for something that another thread, task or process brings about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 50.0
"""The longest wait; less than a test's time limit, so that the failure names the condition's line."""


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It does not hold within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about within {seconds:g} s"
        time.sleep(0.01)


async def until_in_loop(
    condition: Callable[[], object], seconds: float = SECONDS, *, every: float = 0.0
) -> None:
    """Let the event loop go on until a condition holds.

    Args:
        condition: What is checked.
        seconds: The longest wait.
        every: Seconds between two checks; 0 for one at each turn, which keeps the loop busy.

    Raises:
        AssertionError: It does not hold within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about within {seconds:g} s"
        await asyncio.sleep(every)
