"""Event loops: blocking calls into them from other threads, and the cancellation of their tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from headrace.base.errors import Unavailable

_LOOK_SECONDS = 1.0
"""Interval for checking that the loop still runs; a closed loop completes no future."""

CANCELLATION_SECONDS = 5.0
"""Time that a cancelled task has to end, in seconds; after that it is taken to ignore its cancellation."""

_STOPPED = "the server is stopping"

NOT_STARTED = -1
"""Number of forks recorded for an engine that has not been started."""

_NOT_STARTED = (
    "the engine has not been started: use `async with engine`, `Engine.in_thread`, or await its start()"
)
_FORKED = (
    "the engine was started before this process was forked, and its thread runs only in the parent process: "
    "create an engine here"
)

forks = 0
"""Number of forks that led to this process; threads started before a fork do not exist in it."""


def _count_fork() -> None:
    global forks  # noqa: PLW0603 - forks affect the whole process
    forks += 1


os.register_at_fork(after_in_child=_count_fork)

ResultT = TypeVar("ResultT")


def why_not(made: int) -> str:
    """Return why an engine cannot answer calls of this process.

    Args:
        made: Value of ``forks`` when the engine was started, or ``NOT_STARTED``.
    """
    return _NOT_STARTED if made == NOT_STARTED else _FORKED


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, ResultT]) -> ResultT:
    """Run a coroutine in another thread's loop; cancel it there if this thread is interrupted.

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
            if loop.is_closed():  # it closed before the coroutine ran
                raise Unavailable(_STOPPED)
        return future.result()
    except BaseException:  # also interrupts of this thread
        future.cancel()
        raise


async def cancel(
    tasks: Collection[asyncio.Task[Any]], seconds: float | None = CANCELLATION_SECONDS
) -> set[asyncio.Task[Any]]:
    """Cancel tasks of the running loop, and wait until they have ended.

    Args:
        tasks: The tasks.
        seconds: Longest wait in seconds; None for any.

    Returns:
        The tasks that still run.
    """
    for task in tasks:
        task.cancel()
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else set()
