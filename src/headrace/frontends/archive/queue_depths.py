"""Queue depths measured in the background, for callers that must not wait for the queue."""

from __future__ import annotations

import logging
import threading
import time

from headrace.base.errors import HeadraceError
from headrace.storage.queues.queue import Depth, Queue

_log = logging.getLogger(__name__)

_GOOD_SECONDS = 1.0
_GONE_SECONDS = 60.0


class Depths:
    """Measures the depth of a queue in a thread, when it is requested and the last result is old."""

    def __init__(self, queue: Queue) -> None:
        """Start the thread and the first measurement.

        Args:
            queue: The queue; close it after this.
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
        """Return the last depth, or None if it is over a minute old; request a new one if it is old."""
        now = time.monotonic()
        if now - self._asked > _GOOD_SECONDS:
            self._asked = now
            self._wanted.set()
        return self._last if now - self._answered < _GONE_SECONDS else None

    def close(self) -> None:
        """End the thread, after waiting for a measurement in progress."""
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
                _log.debug("the queue did not report its depth: %s", error.message)
            except Exception:  # noqa: BLE001 - the boundary of the thread: metrics continue without depths
                _log.exception("the depth of the queue cannot be determined")
