"""How many calls of a model run side by side: the number that computes the most rows a second.

Calls of some models do not speed each other up: they hold Python's lock, or share one GPU. Such a model
answers more requests with fewer calls at a time, because what waits meanwhile makes larger batches. Nothing
but the measure tells it from a model whose calls do overlap, so numbers are compared while requests come: the
one in use, half as many, and twice as many.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.batching.request import Origin

_log = logging.getLogger(__name__)

_GAIN = 1.1
"""Another number takes over if it computes so many times the rows a second, in each of its stretches."""

_STRETCHES = 4
_LEAST_BATCHES, _BATCHES_A_PLACE = 16, 4
_LEAST_SECONDS = 0.05
_LEAST_OVERLAP = 1.5
"""Where fewer calls than this run side by side on average, there is little to gain from fewer."""

_REST_TIMES, _LEAST_REST_SECONDS = 100.0, 10.0
"""After a comparison that changed nothing comes a rest of so many times its duration: trying costs 1 %."""

_PATIENCE_TIMES, _LEAST_PATIENCE_SECONDS = 20.0, 0.5
"""Calls hang if none of them ends in so many times what they usually take."""

_USUAL_CALLS = 16.0
"""What a call usually takes is an average over about so many of the last ones."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was computed in a stretch of time; time in which no call ran is left out.

    Attributes:
        rows: The rows of the batches that finished.
        seconds: How long it lasted.
        call_seconds: The durations of all calls together.
    """

    rows: int
    seconds: float
    call_seconds: float

    @property
    def overlap(self) -> float:
        """How many calls ran side by side on average."""
        return self.call_seconds / self.seconds


def compare(stretches: Sequence[Stretch]) -> bool | None:
    """Say whether another number of calls computes more rows a second than the one in use. Pure.

    The two take turns, so that a load which rises or falls meanwhile is not taken for a difference.

    Args:
        stretches: At least one: with the number in use, with the other, with the one in use, and so on.

    Returns:
        Whether it does; None while that takes more stretches.
    """
    rates = [stretch.rows / stretch.seconds for stretch in stretches]
    if min(rates[1::2], default=math.inf) < _GAIN * max(rates[::2]):
        return False
    return True if len(stretches) >= _STRETCHES else None


def alternative(in_use: int, most: int, overlap: float, *, more: bool) -> int | None:
    """Say which number of calls to try. Pure.

    Args:
        in_use: How many may run side by side.
        most: The most that ever may.
        overlap: How many did on average.
        more: Whether to try more; fewer otherwise.

    Returns:
        Twice as many, or half as many as did run side by side; None where that is no other number.
    """
    if more:
        return min(2 * in_use, most) if in_use < most else None
    return max(1, min(in_use, round(overlap)) // 2) if overlap >= _LEAST_OVERLAP and in_use > 1 else None


class ConcurrencyLimit:
    """Compares numbers of calls while batches finish, and keeps the best; it needs no clock.

    Attributes:
        in_use: How many calls may run side by side, as far as is known.
        allowed: How many may at this moment: another number while that is tried.
        busy_since: Since when calls run that have not been counted.
    """

    __slots__ = (
        "_batches", "_began", "_call_seconds", "_from", "_more", "_most", "_origin", "_other",
        "_rest_until", "_rows", "_seconds", "_stretches", "_usual_seconds", "allowed", "busy_since",
        "in_use",
    )  # fmt: skip

    def __init__(self, most: int, origin: Origin) -> None:
        """Begin with the most.

        Args:
            most: The most calls that may run side by side.
            origin: Which model and version they are of, for the log.
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
        """How long calls may run without one of them ending before they are taken to hang."""
        return max(_LEAST_PATIENCE_SECONDS, _PATIENCE_TIMES * self._usual_seconds)

    def use_all(self, now: float) -> None:
        """Allow the most again, because the calls that run do not end; compare no sooner than after a rest.

        Args:
            now: In seconds on the monotonic clock.
        """
        self._tell(self._most, "the calls that run do not end")
        self.in_use = self.allowed = self._most
        self._stretches.clear()
        self._begin_stretch(now)
        self._rest_until = now + _LEAST_REST_SECONDS

    def finished(self, rows: int, formed: float, finished: float) -> None:
        """Count a batch.

        Args:
            rows: How many rows it had.
            formed: When it was given to a thread, in seconds on the monotonic clock.
            finished: When it was computed, likewise.
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
        """Count the batches that are formed from now on: others ran beside another number of calls."""
        self._from = now
        self._batches = self._rows = 0
        self._seconds = self._call_seconds = 0.0

    def _go_on(self, now: float) -> None:
        """Decide what the next stretch is for."""
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
            self._tell(self._other, f"it computes more rows a second than with {self.in_use}")
            self.in_use = self._other
        else:
            self._more = not self._more
            self._rest_until = now + max(_LEAST_REST_SECONDS, _REST_TIMES * (now - self._began))
        self.allowed = self.in_use
        self._stretches.clear()

    def _to_try(self, overlap: float) -> int | None:
        """Which number is tried next: in the direction that has changed something last, if possible."""
        for more in (self._more, not self._more):
            other = alternative(self.in_use, self._most, overlap, more=more)
            if other is not None:
                self._more = more
                return other
        return None

    def _tell(self, other: int, why: str) -> None:
        _log.info(
            "uses %d of its %d instances: %s",
            *(other, self._most, why),
            extra={"model": self._origin.model, "version": self._origin.version},
        )
