"""How much waits in a queue, for those who must not wait for it to say so."""

from __future__ import annotations

import logging
import threading
import time

from headrace.errors import HeadraceError
from headrace.queues.queue import Depth, Queue

_log = logging.getLogger(__name__)

_GOOD_SECONDS = 1.0
_GONE_SECONDS = 60.0


class Depths:
    """Asks a queue in the background, whenever somebody wants to know and the last answer is old."""

    def __init__(self, queue: Queue) -> None:
        """Ask for the first time.

        Args:
            queue: Closed after this.
        """
        self._queue = queue
        self._last: Depth | None = None
        self._asked = self._answered = time.monotonic()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._ask, name="archive-depth", daemon=True)
        self._wanted.set()
        self._thread.start()

    def latest(self) -> Depth | None:
        """The last answer; None where there is none of the last minute. The next one is asked for."""
        now = time.monotonic()
        if now - self._asked > _GOOD_SECONDS:
            self._asked = now
            self._wanted.set()
        return self._last if now - self._answered < _GONE_SECONDS else None

    def close(self) -> None:
        """End the thread; a call that is under way is waited for."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

    def _ask(self) -> None:
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            try:
                self._last = self._queue.depth()
                self._answered = time.monotonic()
            except HeadraceError as error:
                _log.debug("the queue does not say how much waits: %s", error.message)
            except Exception:  # noqa: BLE001 - the boundary of the thread: metrics go on without
                _log.exception("the queue cannot say how much waits")
