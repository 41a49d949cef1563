"""Attempts to load versions: how many run, which are slow, and which have been abandoned.

A thread that hangs cannot be ended. An attempt that exceeds its timeout is abandoned: its thread is left
running and counted, other attempts may start, and a late result is discarded. Serving thread only.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol

from headrace.base.clock import Clock, Timer
from headrace.config import ModelConfig
from headrace.lifecycle.leases import LoadedT
from headrace.lifecycle.model_records import ModelRecord, VersionRecord


class Loader(Protocol[LoadedT]):
    """Turns a version directory into a loaded version."""

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedT:
        """Check and load a version, in a loader thread; any exception becomes the version's error."""

    def warm_up(self, loaded: LoadedT) -> None:
        """Warm the version up, in a loader thread; any exception becomes the version's error."""

    def attach(self, loaded: LoadedT) -> None:
        """Make it ready for requests, in the serving thread, just before the first may arrive."""

    def close(self, loaded: LoadedT) -> None:
        """Free its resources, in a loader thread, once no request holds it."""


# Priority queue of the versions to load, with at most one version per model.


class _Urgency(NamedTuple):
    """Sort key of loads: first models without a ready version, then fewest attempts, then by name."""

    is_replacement: bool
    attempts: int
    model: str
    number: int


class WaitingLoads(Generic[LoadedT]):
    """The queued loads. ``take`` has logarithmic cost, because at start-up all models are queued."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._waiting: dict[str, tuple[_Urgency, ModelRecord[LoadedT], VersionRecord[LoadedT]]] = {}
        self._in_order: list[_Urgency] = []

    def __bool__(self) -> bool:
        """Return whether a version is queued."""
        return bool(self._waiting)

    def put(
        self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT], *, is_replacement: bool
    ) -> None:
        """Queue a version, in place of any other of its model.

        Args:
            model: Its model.
            version: The version.
            is_replacement: Whether another version of the model serves meanwhile.
        """
        urgency = _Urgency(is_replacement, version.attempts, model.name, version.number)
        self._waiting[model.name] = urgency, model, version
        heapq.heappush(self._in_order, urgency)
        if len(self._in_order) > 2 * len(self._waiting) + 1:  # most entries are stale
            self._in_order = sorted(urgency for urgency, _, _ in self._waiting.values())

    def drop(self, model: str) -> None:
        """Remove a model's version from the queue, if there is one."""
        self._waiting.pop(model, None)

    def take(self) -> tuple[ModelRecord[LoadedT], VersionRecord[LoadedT]]:
        """Remove and return the most urgent version with its model.

        Raises:
            IndexError: The queue is empty.
        """
        while True:
            urgency = heapq.heappop(self._in_order)
            waiting = self._waiting.get(urgency.model)
            if waiting is not None and waiting[0] is urgency:
                del self._waiting[urgency.model]
                return waiting[1], waiting[2]


SLOW_SECONDS = 10.0
"""Time after which an attempt no longer delays loads of other models, because it may never end."""

MOST_HANGING = 3
"""Number of hanging loads at which no further load of a model starts, because it would hang as well."""

TOO_MANY_HANG = (
    f"{MOST_HANGING} loads of this model hang: no further load of it is started until one of them returns "
    "or the server is restarted"
)


class Attempt(Generic[LoadedT]):
    """One attempt to load a version and warm it up.

    Attributes:
        model: The model.
        version: The version.
        limit_seconds: Timeout in seconds.
        loaded: The loaded version; None until it has loaded.
        awaited: False once it has been abandoned.
        slow: Whether it has taken so long that it no longer delays others.
        timers: Timers for ``slow`` and for the timeout.
    """

    __slots__ = ("awaited", "limit_seconds", "loaded", "model", "slow", "timers", "version")

    def __init__(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        """Create the attempt without timers."""
        self.model = model
        self.version = version
        self.limit_seconds = version.place.config.versions.load_timeout_seconds
        self.loaded: LoadedT | None = None
        self.awaited = True
        self.slow = False
        self.timers: tuple[Timer, ...] = ()


class Attempts(Generic[LoadedT]):
    """The running attempts of all models."""

    def __init__(self, clock: Clock, at_once: int) -> None:
        """Begin without attempts.

        Args:
            clock: The serving thread's clock.
            at_once: The most attempts that may run concurrently, not counting slow ones.
        """
        self._clock = clock
        self._at_once = at_once
        self._awaited: set[Attempt[LoadedT]] = set()
        self._hanging: Counter[str] = Counter()

    @property
    def is_room(self) -> bool:
        """Whether one more attempt may begin."""
        return sum(not attempt.slow for attempt in self._awaited) < self._at_once

    @property
    def hanging(self) -> int:
        """Number of abandoned attempts that are still running."""
        return self._hanging.total()

    def too_many_hang(self, model: str) -> bool:
        """Return whether so many attempts of a model hang that no further one may start."""
        return self._hanging[model] >= MOST_HANGING

    def awaited(self) -> list[Attempt[LoadedT]]:
        """Return the attempts that have not been abandoned."""
        return list(self._awaited)

    def begin(
        self,
        model: ModelRecord[LoadedT],
        version: VersionRecord[LoadedT],
        on_slow: Callable[[], object],
        on_too_long: Callable[[Attempt[LoadedT]], object],
    ) -> Attempt[LoadedT]:
        """Begin an attempt and start its timers.

        Args:
            model: The model.
            version: Its version.
            on_slow: Called when the attempt has become slow, so that another may begin.
            on_too_long: Called when the attempt has exceeded its timeout.
        """
        attempt = Attempt(model, version)
        self._awaited.add(attempt)
        attempt.timers = (
            self._clock.call_later(SLOW_SECONDS, self._make_room, attempt, on_slow),
            self._clock.call_later(attempt.limit_seconds, on_too_long, attempt),
        )
        return attempt

    def end(self, attempt: Attempt[LoadedT]) -> None:
        """Record that an attempt has succeeded or failed."""
        self._awaited.discard(attempt)
        for timer in attempt.timers:
            timer.cancel()

    def abandon(self, attempt: Attempt[LoadedT]) -> None:
        """Stop waiting for an attempt and count it as hanging."""
        self.end(attempt)
        attempt.awaited = False
        self._hanging[attempt.model.name] += 1

    def come_back(self, attempt: Attempt[LoadedT]) -> None:
        """Record that an abandoned attempt has ended."""
        self._hanging[attempt.model.name] -= 1
        if not self._hanging[attempt.model.name]:
            del self._hanging[attempt.model.name]

    def _make_room(self, attempt: Attempt[LoadedT], on_slow: Callable[[], object]) -> None:
        attempt.slow = True
        on_slow()
