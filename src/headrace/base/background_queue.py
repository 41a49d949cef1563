"""A bounded queue from the serving thread to a slow worker thread; putting an item never blocks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class BackgroundQueue(Generic[_T]):
    """A queue of items processed later in batches; items beyond the limit are dropped and counted."""

    def __init__(
        self, name: str, work: Callable[[list[_T]], None], *, most: int, at_once: int, every_seconds: float
    ) -> None:
        """Start the thread.

        Args:
            name: The thread's name.
            work: Processes a batch of items in the thread; also called with an empty list at the end of each
                wake-up. If it raises, the exception is logged and the batch is lost.
            most: Maximum number of queued items.
            at_once: Maximum number of items in a batch; the thread wakes up when this many are queued.
            every_seconds: Longest time between two wake-ups.
        """
        self._refused = self._lost = 0  # each is updated by one thread only
        self._name, self._work = name, work
        self._most, self._at_once, self._every_seconds = most, at_once, every_seconds
        self._items: deque[_T] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of items that were not processed: the queue was full, or the work failed."""
        return self._refused + self._lost

    def put(self, item: _T) -> None:
        """Enqueue an item, or drop it. Never blocks; call it from one thread only."""
        waiting = len(self._items)
        if waiting >= self._most or self._closing:
            self._refused += 1
            return
        self._items.append(item)
        if waiting + 1 == self._at_once:
            self._wake.set()

    def hurry(self) -> None:
        """Wake the thread up now."""
        self._wake.set()

    def close(self, seconds: float) -> bool:
        """Accept no more items, and wait until the thread has processed those in the queue.

        Args:
            seconds: Longest wait. The thread is a daemon, so it does not keep the process alive.

        Returns:
            Whether the thread has ended.
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
        except Exception:  # noqa: BLE001 - the boundary of the thread: later batches are still processed
            self._lost += len(items)
            _log.exception("%s failed; its items are lost", self._name)
