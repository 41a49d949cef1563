"""Choose the number of concurrent calls of a model that computes the most rows per second.

Concurrent calls of some models do not raise throughput, because they hold the GIL or share one GPU. Such a
model answers more requests with fewer concurrent calls, because the requests that wait form larger batches.
Only a measurement tells such models from those whose calls do overlap. The current number is therefore
compared with half and twice as many while requests are served.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.batching.request import Origin

_log = logging.getLogger(__name__)

_GAIN = 1.1
"""Factor by which another number must raise rows per second, in each of its stretches, to be adopted."""

_STRETCHES = 4
_LEAST_BATCHES, _BATCHES_A_PLACE = 16, 4
_LEAST_SECONDS = 0.05
_LEAST_OVERLAP = 1.5
"""Average number of concurrent calls below which a lower number is not tried: there is little to gain."""

_REST_TIMES, _LEAST_REST_SECONDS = 100.0, 10.0
"""Pause after a comparison that changed nothing, as a multiple of its duration: trying costs 1 %."""

_PATIENCE_TIMES, _LEAST_PATIENCE_SECONDS = 20.0, 0.5
"""Calls are taken to hang if none ends within this multiple of their usual duration."""

_USUAL_CALLS = 16.0
"""Number of calls over which their usual duration is averaged, exponentially."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Work done in a stretch of time, excluding time in which no call ran.

    Attributes:
        rows: Rows of the batches that finished.
        seconds: Length of the stretch in seconds.
        call_seconds: Sum of the durations of all calls.
    """

    rows: int
    seconds: float
    call_seconds: float

    @property
    def overlap(self) -> float:
        """Average number of concurrent calls."""
        return self.call_seconds / self.seconds


def compare(stretches: Sequence[Stretch]) -> bool | None:
    """Return whether another number of calls computes more rows per second than the one in use. Pure.

    The two numbers alternate, so that a change in load is not mistaken for a difference between them.

    Args:
        stretches: At least one stretch: with the number in use, the other, the number in use, and so on.

    Returns:
        True or False; None if more stretches are needed.
    """
    rates = [stretch.rows / stretch.seconds for stretch in stretches]
    if min(rates[1::2], default=math.inf) < _GAIN * max(rates[::2]):
        return False
    return True if len(stretches) >= _STRETCHES else None


def alternative(in_use: int, most: int, overlap: float, *, more: bool) -> int | None:
    """Return the number of concurrent calls to try next. Pure.

    Args:
        in_use: The current limit.
        most: The upper bound of the limit.
        overlap: Average number of calls that ran concurrently.
        more: Whether to try a higher number rather than a lower one.

    Returns:
        Twice the limit, or half the number that did run concurrently; None if there is nothing to try.
    """
    if more:
        return min(2 * in_use, most) if in_use < most else None
    return max(1, min(in_use, round(overlap)) // 2) if overlap >= _LEAST_OVERLAP and in_use > 1 else None


class ConcurrencyLimit:
    """Compares limits on concurrent calls as batches finish, and keeps the best; needs no clock.

    Attributes:
        in_use: The best limit found so far.
        allowed: The limit in force, which differs from ``in_use`` while another is tried.
        busy_since: Time since which calls have been running that are not counted yet.
    """

    __slots__ = (
        "_batches", "_began", "_call_seconds", "_from", "_more", "_most", "_origin", "_other",
        "_rest_until", "_rows", "_seconds", "_stretches", "_usual_seconds", "allowed", "busy_since",
        "in_use",
    )  # fmt: skip

    def __init__(self, most: int, origin: Origin) -> None:
        """Begin with the upper bound.

        Args:
            most: The upper bound of the limit.
            origin: Model and version, for the log.
        """
        self._most = self.in_use = self.allowed = most
        self._origin = origin
        self.busy_since = 0.0
        self._more = False
        self._other: int | None = None
        self._stretches: list[Stretch] = []
        self._began = 0.0
        self._rest_until = -math.inf
        self._usual_seconds = 0.0
        self._begin_stretch(-math.inf)

    @property
    def patience_seconds(self) -> float:
        """Longest time in seconds without a finished call before the calls are taken to hang."""
        return max(_LEAST_PATIENCE_SECONDS, _PATIENCE_TIMES * self._usual_seconds)

    def use_all(self, now: float) -> None:
        """Return to the upper bound because the running calls do not end; pause comparisons.

        Args:
            now: Current time in seconds on the monotonic clock.
        """
        self._tell(self._most, "the running calls do not return")
        self.in_use = self.allowed = self._most
        self._stretches.clear()
        self._begin_stretch(now)
        self._rest_until = now + _LEAST_REST_SECONDS

    def finished(self, rows: int, formed: float, finished: float) -> None:
        """Count a batch.

        Args:
            rows: Number of rows of the batch.
            formed: Time at which it was formed, in seconds on the monotonic clock.
            finished: Time at which it was computed, likewise.
        """
        since, self.busy_since = self.busy_since, max(self.busy_since, finished)
        self._usual_seconds += (finished - formed - self._usual_seconds) / _USUAL_CALLS
        if finished < self._rest_until or formed < self._from:
            return
        self._batches += 1
        self._rows += rows
        self._seconds += self.busy_since - since
        self._call_seconds += finished - formed
        least = max(_LEAST_BATCHES, _BATCHES_A_PLACE * self.allowed)
        if self._batches >= least and self._seconds >= _LEAST_SECONDS:
            self._stretches.append(Stretch(self._rows, self._seconds, self._call_seconds))
            self._go_on(finished)
            self._begin_stretch(finished)

    def _begin_stretch(self, now: float) -> None:
        """Count only batches formed from now on: earlier ones ran under another limit."""
        self._from = now
        self._batches = self._rows = 0
        self._seconds = self._call_seconds = 0.0

    def _go_on(self, now: float) -> None:
        """Choose the limit for the next stretch."""
        if len(self._stretches) == 1:
            self._began = now
            self._other = self._to_try(self._stretches[0].overlap)
            if self._other is None:
                self._stretches.clear()
                return
        better = compare(self._stretches)
        if better is None:
            self.allowed = self._other if self.allowed == self.in_use and self._other else self.in_use
            return
        if better and self._other:
            self._tell(self._other, f"it computes more rows per second than with {self.in_use}")
            self.in_use = self._other
        else:
            self._more = not self._more
            self._rest_until = now + max(_LEAST_REST_SECONDS, _REST_TIMES * (now - self._began))
        self.allowed = self.in_use
        self._stretches.clear()

    def _to_try(self, overlap: float) -> int | None:
        """Return the limit to try next, preferring the last direction if it helped, else the opposite one."""
        for more in (self._more, not self._more):
            other = alternative(self.in_use, self._most, overlap, more=more)
            if other is not None:
                self._more = more
                return other
        return None

    def _tell(self, other: int, why: str) -> None:
        _log.info(
            "the version now uses %d of its %d instances: %s",
            *(other, self._most, why),
            extra={"model": self._origin.model, "version": self._origin.version},
        )
