"""A Clock that tests turn by hand."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

_MOST_CALLS = 100_000


class VirtualTimer:
    """A call that is due later; ``cancel`` calls it off."""

    def __init__(self, due: float, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.due = due
        self._callback = callback
        self._args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._callback(*self._args)


class VirtualClock:
    """Implements ``headrace.base.clock.Clock``: nothing runs and no time passes but by its own methods."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._ready.append((callback, args))

    call_soon_threadsafe = call_soon  # deque.append is safe from any thread

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> VirtualTimer:
        timer = VirtualTimer(self._now + seconds, callback, args)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    @property
    def timers(self) -> int:
        """How many timers are set and not called off."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def run_ready(self) -> None:
        """Run what is ready now, and what that makes ready, without letting time pass."""
        calls = 0
        while self._ready or self._due():
            callback, args = self._ready.popleft() if self._ready else (self._pop().run, ())
            callback(*args)
            calls += 1
            if calls > _MOST_CALLS:
                raise RuntimeError(f"still not done after {_MOST_CALLS} calls; the last was {callback}")

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each timer on the way to run what is due."""
        until = self._now + seconds
        self.run_ready()
        while self._timers and self._timers[0][0] <= until:
            self._now = max(self._now, self._timers[0][0])
            self.run_ready()
        self._now = until
        self.run_ready()

    def _due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= self._now

    def _pop(self) -> VirtualTimer:
        return heapq.heappop(self._timers)[2]
