"""A queue from the serving thread to a thread that works slowly: bounded, and nobody ever waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class BackgroundQueue(Generic[_T]):
    """Things that are worked on later, a few at a time; those beyond the limit are dropped and counted."""

    def __init__(
        self, name: str, work: Callable[[list[_T]], None], *, most: int, at_once: int, every_seconds: float
    ) -> None:
        """Start the thread.

        Args:
            name: Its name.
            work: What is done in it with what has come, also with nothing, once in a while. What it raises is
                logged, and those things are lost.
            most: How many things may wait.
            at_once: How many are worked on together; the thread wakes up when so many wait.
            every_seconds: How often it looks at the latest.
        """
        self._refused = self._lost = 0  # each is counted in one thread
        self._name, self._work = name, work
        self._most, self._at_once, self._every_seconds = most, at_once, every_seconds
        self._items: deque[_T] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many things were never worked on to the end: too many waited, or the work failed."""
        return self._refused + self._lost

    def put(self, item: _T) -> None:
        """Hand something over, or drop it. From one thread; at once."""
        waiting = len(self._items)
        if waiting >= self._most or self._closing:
            self._refused += 1
            return
        self._items.append(item)
        if waiting + 1 == self._at_once:
            self._wake.set()

    def hurry(self) -> None:
        """Have the thread look now."""
        self._wake.set()

    def close(self, seconds: float) -> bool:
        """Take nothing more, and wait until the thread has done what waits.

        Args:
            seconds: For how long. The thread does not keep the process.

        Returns:
            Whether it has ended.
        """
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            is_last = self._closing
            while self._items:
                self._do([self._items.popleft() for _ in range(min(len(self._items), self._at_once))])
            self._do([])
            if is_last:
                return

    def _do(self, items: list[_T]) -> None:
        try:
            self._work(items)
        except Exception:  # noqa: BLE001 - the boundary of the thread: what comes next is worked on all the same
            self._lost += len(items)
            _log.exception("%s failed; what it was to work on is lost", self._name)
