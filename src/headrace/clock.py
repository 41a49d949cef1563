"""Time, injected: whoever waits or measures asks a Clock, so that tests can turn it by hand.

Deadlines and timings are seconds on the monotonic clock. The wall clock is for log stamps, and for what is
kept beyond this process: when a value was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


def unix_milliseconds() -> int:
    """The wall clock, as what is kept says when it was written: milliseconds of Unix time."""
    return time.time_ns() // 1_000_000


def unix_offset_nanoseconds() -> int:
    """What added to the monotonic clock gives Unix time; it changes where the wall clock is set."""
    return time.time_ns() - time.monotonic_ns()


class Timer(Protocol):
    """A call that is due later and can be called off."""

    def cancel(self) -> None:
        """Call it off; no effect when it has run."""


class Clock(Protocol):
    """Monotonic time and calls in the serving thread."""

    def now(self) -> float:
        """The monotonic time in seconds."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        """Run the callback in the serving thread after what is ready now. Serving thread only."""

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        """Run the callback in the serving thread after some time. Serving thread only."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object:
        """Run the callback in the serving thread; callable from any thread."""


class LoopClock:
    """The Clock of an asyncio event loop; its thread is the serving thread."""

    # uvloop's own time() is cached per iteration, in milliseconds: too coarse for what a batch costs.
    now = staticmethod(time.monotonic)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run calls in a loop from now on; before, only ``now`` works.

        Args:
            loop: The loop whose thread serves.
        """
        self.call_soon = loop.call_soon
        self.call_later = loop.call_later
        self.call_soon_threadsafe = loop.call_soon_threadsafe
