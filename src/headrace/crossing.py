"""From a thread that waits into the serving thread's event loop, and back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Coroutine
from typing import TypeVar

from headrace.errors import Unavailable

_LOOK_SECONDS = 1.0
"""So often it is looked whether the loop has ended, which then answers nobody."""

_STOPPED = "the server is stopping"

NOT_STARTED = -1
"""What stands for the number of forks in an engine that has not been started."""

_NOT_STARTED = (
    "the engine has not been started: use `async with engine`, `Engine.in_thread`, or await its start()"
)
_FORKED = "the engine was made before this process was forked, and its thread is the parent's; make one here"

forks = 0
"""How often this process has been forked from another: threads of before are not in it."""


def _count_fork() -> None:
    global forks  # noqa: PLW0603 - the process's, like the fork
    forks += 1


os.register_at_fork(after_in_child=_count_fork)

ResultT = TypeVar("ResultT")


def why_not(made: int) -> str:
    """Why an engine answers no thread of this process.

    Args:
        made: The number of forks when it was started, or ``NOT_STARTED``.
    """
    return _NOT_STARTED if made == NOT_STARTED else _FORKED


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, ResultT]) -> ResultT:
    """Run a coroutine in another thread's loop, and cancel it there when this thread is interrupted.

    Raises:
        Unavailable: The loop has ended.
    """
    try:
        future: concurrent.futures.Future[ResultT] = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as error:
        work.close()
        raise Unavailable(_STOPPED) from error
    try:
        while not concurrent.futures.wait([future], _LOOK_SECONDS).done:
            if loop.is_closed():  # it had ended before it came to this
                raise Unavailable(_STOPPED)
        return future.result()
    except BaseException:  # an interrupt, of whatever kind
        future.cancel()
        raise
