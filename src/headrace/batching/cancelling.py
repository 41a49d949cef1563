"""Tasks of a model's own coroutines, which are cancelled when nobody waits for them any more.

A coroutine can ignore that: a bare ``except`` around an ``await`` catches the cancellation, too. Such a task
is left to itself after some seconds, so that it does not occupy its place for good.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.base.errors import DeadlineExceeded
from headrace.base.event_loop import CANCELLATION_SECONDS, cancel
from headrace.batching.request import Origin

_log = logging.getLogger(__name__)

EXPIRED = "the deadline passed before the model had answered"

MOST_LEFT = 1000
"""Tasks of a version that may be left to themselves at the same time; further ones keep their places."""

ResultT = TypeVar("ResultT")


class Cancelling:
    """Runs and cancels tasks of one version, in its event loop."""

    def __init__(self, origin: Origin) -> None:
        """Begin without tasks.

        Args:
            origin: The model and version, for the log.
        """
        self._origin = origin
        self._left: set[asyncio.Task[Any]] = set()
        self._is_logged = False

    async def result(self, work: Coroutine[Any, Any, ResultT], seconds: float) -> ResultT:
        """Await a coroutine in a task of its own.

        Args:
            work: The coroutine.
            seconds: Time in seconds after which it is cancelled; may be infinite.

        Raises:
            DeadlineExceeded: The time has passed; the coroutine has ended or is left to itself.
            BaseException: Any exception of the coroutine.
        """
        task = asyncio.create_task(work)
        done, _ = await asyncio.wait([task], timeout=None if seconds == math.inf else seconds)
        if done:
            return task.result()
        await self.end(task)
        raise DeadlineExceeded(EXPIRED)

    async def end(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task, and wait until it has ended; leave it to itself if it ignores that."""
        task.add_done_callback(self._has_ended)
        left = await cancel([task], CANCELLATION_SECONDS if len(self._left) < MOST_LEFT else None)
        self._left |= left
        if left and not self._is_logged:
            self._is_logged = True
            _log.error(
                "%s version %s: a call of predict ignores that it was cancelled %g s ago, and is left to "
                "itself; code that catches everything (`except:`) must raise asyncio.CancelledError again",
                self._origin.model, self._origin.version, CANCELLATION_SECONDS,
            )  # fmt: skip

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it; asyncio logs exceptions that nobody has asked for
