"""Injected time: code that waits or measures uses a Clock, so that tests can control it.

Deadlines and timings are in seconds on the monotonic clock. The wall clock is used for log timestamps and for
times that outlive the process, such as when a value was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn, Protocol


def unix_milliseconds() -> int:
    """Return the wall clock in milliseconds of Unix time, as stored with written values."""
    return time.time_ns() // 1_000_000


def unix_offset_nanoseconds() -> int:
    """Return Unix time minus the monotonic clock, in ns; it changes when the wall clock is set."""
    return time.time_ns() - time.monotonic_ns()


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call; no effect once it has run."""


class Clock(Protocol):
    """Monotonic time, and calls scheduled in the serving thread."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        """Run the callback in the serving thread after the callbacks already due. Serving thread only."""

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        """Run the callback in the serving thread after a delay. Serving thread only."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object:
        """Run the callback in the serving thread. Thread-safe."""


class LoopClock:
    """The Clock of an asyncio event loop, whose thread is the serving thread."""

    # uvloop caches time() per iteration, in milliseconds: too coarse to measure a batch.
    now = staticmethod(time.monotonic)
    call_soon_threadsafe: Callable[..., object]

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule calls in a loop from now on; before, only ``now`` works.

        Args:
            loop: The event loop of the serving thread.
        """
        self.call_soon = loop.call_soon
        self.call_later = loop.call_later
        self.call_soon_threadsafe = loop.call_soon_threadsafe

    def unbind(self) -> None:
        """Refuse calls from other threads from now on, as a closed loop does.

        A callback that another thread schedules while its loop ends may never run, and that thread would wait
        for ever.
        """
        self.call_soon_threadsafe = _refuse


def _refuse(callback: Callable[..., object], *args: object) -> NoReturn:
    raise RuntimeError("the serving thread has ended")
