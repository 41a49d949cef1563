"""Watch the tasks of a serving process, so that no required task ends unnoticed."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

_log = logging.getLogger(__name__)


class TaskWatch:
    """Watches tasks of one event loop, and reports the first required one that ends.

    Attributes:
        failed: Completes with the name of the first required task that ended before ``stop``.
    """

    def __init__(self) -> None:
        """Start without tasks, in the running event loop."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopping = False

    def needs(self, what: str, task: asyncio.Future[None]) -> None:
        """Watch a task that has to run until the server stops.

        Args:
            what: Name of the task for the log.
            task: The task.
        """
        task.add_done_callback(partial(self._ended, what))

    def allows(self, what: str, task: asyncio.Future[None]) -> None:
        """Watch a task that may end; a failure is logged, and the server goes on.

        Args:
            what: Name of the task for the log.
            task: The task.
        """
        task.add_done_callback(partial(self._failed, what))

    def stop(self) -> None:
        """Allow all tasks to end from now on."""
        self._stopping = True

    def _ended(self, what: str, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopping:
            return
        why = f": {error}" if error is not None else ""
        _log.error("%s ended unexpectedly; no more requests can be accepted%s", what, why)
        if not self.failed.done():
            self.failed.set_result(what)

    @staticmethod
    def _failed(what: str, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("%s failed; the server goes on", what, exc_info=error)
