"""Attempts to load versions: how many run, which take long, and which are not waited for any more.

A thread that hangs cannot be ended. An attempt that has taken too long is abandoned: its thread is left alone
and counted, others take its place, and what it brings at last is thrown away. The serving thread has it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic

from headrace.clock import Clock, Timer
from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.records import ModelRecord, VersionRecord

SLOW_SECONDS = 10.0
"""After this an attempt holds up no load of another model: it may wait for ever for all we know."""

MOST_HANGING = 3
"""How many threads of one model may hang before nothing more of it is loaded: the next would hang as well."""

TOO_MANY_HANG = (
    f"{MOST_HANGING} loads of it hang: nothing more of it is loaded before one of them ends, "
    "or the server is started again"
)


class Attempt(Generic[LoadedT]):
    """One attempt to load a version and warm it up.

    Attributes:
        model: The model.
        version: The version.
        limit_seconds: How long it may take.
        loaded: What has been made of the version so far.
        awaited: Whether it is still waited for.
        slow: Whether it has taken so long that it holds up no others.
        timers: What will say that it takes long, and too long.
    """

    __slots__ = ("awaited", "limit_seconds", "loaded", "model", "slow", "timers", "version")

    def __init__(self, model: ModelRecord[LoadedT], version: VersionRecord[LoadedT]) -> None:
        """Begin."""
        self.model = model
        self.version = version
        self.limit_seconds = version.place.config.versions.load_timeout_seconds
        self.loaded: LoadedT | None = None
        self.awaited = True
        self.slow = False
        self.timers: tuple[Timer, ...] = ()


class Attempts(Generic[LoadedT]):
    """The attempts that run now."""

    def __init__(self, clock: Clock, at_once: int) -> None:
        """Start without any.

        Args:
            clock: Time, and calls in the serving thread.
            at_once: How many may run at the same time, those left out that have taken long.
        """
        self._clock = clock
        self._at_once = at_once
        self._awaited: set[Attempt[LoadedT]] = set()
        self._hanging: Counter[str] = Counter()

    @property
    def is_room(self) -> bool:
        """Whether one more may begin."""
        return sum(not attempt.slow for attempt in self._awaited) < self._at_once

    @property
    def hanging(self) -> int:
        """How many are at work though nobody waits for them any more."""
        return self._hanging.total()

    def too_many_hang(self, model: str) -> bool:
        """Whether so many attempts of a model hang that nothing more of it is to be loaded."""
        return self._hanging[model] >= MOST_HANGING

    def awaited(self) -> list[Attempt[LoadedT]]:
        """Those that are waited for."""
        return list(self._awaited)

    def begin(
        self,
        model: ModelRecord[LoadedT],
        version: VersionRecord[LoadedT],
        on_slow: Callable[[], object],
        on_too_long: Callable[[Attempt[LoadedT]], object],
    ) -> Attempt[LoadedT]:
        """Begin one.

        Args:
            model: The model.
            version: Its version.
            on_slow: Called when it has taken so long that there is room for another.
            on_too_long: Called when it has taken longer than it may.
        """
        attempt = Attempt(model, version)
        self._awaited.add(attempt)
        attempt.timers = (
            self._clock.call_later(SLOW_SECONDS, self._make_room, attempt, on_slow),
            self._clock.call_later(attempt.limit_seconds, on_too_long, attempt),
        )
        return attempt

    def end(self, attempt: Attempt[LoadedT]) -> None:
        """It has ended, well or not."""
        self._awaited.discard(attempt)
        for timer in attempt.timers:
            timer.cancel()

    def abandon(self, attempt: Attempt[LoadedT]) -> None:
        """Wait for it no longer."""
        self.end(attempt)
        attempt.awaited = False
        self._hanging[attempt.model.name] += 1

    def come_back(self, attempt: Attempt[LoadedT]) -> None:
        """One that was abandoned has ended after all."""
        self._hanging[attempt.model.name] -= 1
        if not self._hanging[attempt.model.name]:
            del self._hanging[attempt.model.name]

    def _make_room(self, attempt: Attempt[LoadedT], on_slow: Callable[[], object]) -> None:
        attempt.slow = True
        on_slow()
