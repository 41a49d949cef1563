"""A single timer for the deadlines of all requests of a Batcher, set to the earliest one."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.base.clock import Clock, Timer

_SLACK_SECONDS = 0.0005


class Expiry:
    """Calls a sweep function after the earliest deadline has passed. Serving thread only.

    Attributes:
        at: The earliest watched deadline on the monotonic clock; infinite without one.
        slack_seconds: Delay from the deadline to the sweep, so that requests that arrived together expire in
            one sweep.
    """

    __slots__ = ("_clock", "_sweep", "_timer", "at", "slack_seconds")

    def __init__(self, clock: Clock, sweep: Callable[[], object]) -> None:
        """Create the timer without a deadline.

        Args:
            clock: The serving thread's clock.
            sweep: Function that answers the expired requests and calls ``swept``.
        """
        self.at = math.inf
        self.slack_seconds = _SLACK_SECONDS
        self._clock = clock
        self._sweep = sweep
        self._timer: Timer | None = None

    def watch(self, deadline: float, now: float) -> None:
        """Watch a deadline that is earlier than ``at``."""
        self.cancel()
        self.at = deadline
        self._timer = self._clock.call_later(max(deadline - now, 0.0) + self.slack_seconds, self._sweep)

    def swept(self, earliest: float, began: float) -> None:
        """Watch the next deadline after a sweep.

        Args:
            earliest: The earliest remaining deadline; infinite for none.
            began: Start of the sweep on the monotonic clock.
        """
        self._timer, self.at = None, math.inf
        # Frequent sweeps of a long queue would keep the serving thread from shortening it.
        self.slack_seconds = max(_SLACK_SECONDS, 4 * (self._clock.now() - began))
        if earliest != math.inf:
            self.watch(earliest, began)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
