"""Calls side by side, simulated on a virtual clock, with a law of how much they speed each other up."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.batching.concurrency import ConcurrencyLimit
from headrace.batching.request import NOBODY

Speed = Callable[[int], float]
"""How many times as much is computed while so many calls run as while one does."""

_MOST_ROWS = 256
_MOST_STEPS = 10_000_000


@dataclass
class Call:
    """A call that runs.

    Attributes:
        rows: Its rows.
        formed: When it began.
        left: How long it would still take alone.
    """

    rows: int
    formed: float
    left: float


class SideBySide:
    """Clients that ask for one row at a time, and a model whose calls cost a fixed time and a time a row.

    Attributes:
        limit: How many calls may run, as measured.
        speed: The law.
        now: The virtual time.
        answered: How many rows have been answered.
    """

    def __init__(
        self, most: int, speed: Speed, call_seconds: float, row_seconds: float, *, measures: bool = True
    ) -> None:
        self.limit = ConcurrencyLimit(most, NOBODY)
        self._measures = measures
        self.speed = speed
        self.now = 0.0
        self.answered = 0
        self._costs = call_seconds, row_seconds
        self._random = random.Random(1)
        self._running: list[Call] = []
        self._waiting = self._clients = 0
        self._arrivals: list[float] = []

    def run(self, seconds: float, clients: int, pause_seconds: float = 0.0005) -> float:
        """Let clients ask, and ask again after a pause once they are answered.

        Args:
            seconds: How long.
            clients: How many there are, at least as many as before.
            pause_seconds: The mean of the pauses.

        Returns:
            Rows answered a second.
        """
        until, before = self.now + seconds, self.answered
        self._arrive_later(clients - self._clients, pause_seconds)
        self._clients = clients
        for _ in range(_MOST_STEPS):
            if self.now >= until:
                return (self.answered - before) / seconds
            self._start()
            self._step(pause_seconds)
        raise RuntimeError(f"still not done after {_MOST_STEPS} steps")

    def _arrive_later(self, clients: int, pause_seconds: float) -> None:
        for _ in range(clients):
            heapq.heappush(self._arrivals, self.now + self._random.expovariate(1 / pause_seconds))

    def _start(self) -> None:
        """Let what waits begin, in as few calls as their rows allow."""
        for _ in range(self.limit.allowed - len(self._running)):
            rows = min(self._waiting, _MOST_ROWS)
            if not rows:
                return
            if not self._running:
                self.limit.busy_since = self.now
            call_seconds, row_seconds = self._costs
            alone = self._random.uniform(0.8, 1.25) * (call_seconds + row_seconds * rows)
            self._running.append(Call(rows, self.now, alone))
            self._waiting -= rows

    def _step(self, pause_seconds: float) -> None:
        """Go on to the next arrival, or to the next end of a call."""
        arrival = self._arrivals[0] if self._arrivals else float("inf")
        each = self.speed(len(self._running)) / len(self._running) if self._running else 1.0
        first = min(self._running, key=lambda call: call.left, default=None)
        ends = self.now + first.left / each if first is not None else float("inf")
        passed, self.now = min(arrival, ends) - self.now, min(arrival, ends)
        for call in self._running:
            call.left -= passed * each
        if first is None or arrival < ends:
            heapq.heappop(self._arrivals)
            self._waiting += 1
            return
        self._running.remove(first)
        if self._measures:
            self.limit.finished(first.rows, first.formed, self.now)
        self.answered += first.rows
        self._arrive_later(first.rows, pause_seconds)
