"""The event loop in which the coroutines of a model's own code run.

asyncio stops a loop in which a coroutine raises SystemExit or KeyboardInterrupt, and whoever waits for one of
its tasks would wait for ever. Here a loop runs until it is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.base.event_loop import CANCELLATION_SECONDS, cancel, run_in

_log = logging.getLogger(__name__)

ENDS = (SystemExit, KeyboardInterrupt)
"""Exceptions that stop a loop. No signal arrives in its thread, so a model's own code raised them."""


class ModelLoop:
    """The event loop of one version's coroutines, in a thread that is started when it is needed."""

    def __init__(self, owner: str) -> None:
        """Begin without a loop.

        Args:
            owner: The model, for the log.
        """
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            arguments = (self._loop, self._closed, self._owner)
            self._thread = threading.Thread(target=_run, args=arguments, name="model loop", daemon=True)
            self._thread.start()
        return self._loop

    def is_this_thread(self) -> bool:
        """Return whether the running thread is the loop's."""
        return threading.current_thread() is self._thread

    def result(self, method: Callable[..., object], *arguments: object) -> object:
        """Call a method of the model, in the loop if it is a coroutine function, and return its result.

        Raises:
            BaseException: Any exception of the method.
        """
        if not inspect.iscoroutinefunction(method):
            return method(*arguments)
        result, end = run_in(self.start(), _contained(method(*arguments)))
        if end is not None:
            raise end
        return result

    def close(self) -> None:
        """Cancel the tasks that the model has left, and end the loop and its thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_stop, self._loop, self._closed)


def _stop(loop: asyncio.AbstractEventLoop, closed: threading.Event) -> None:
    """Stop a loop for good; runs in it, because a stop between two runs would end the cancelling of tasks."""
    closed.set()
    loop.stop()


async def _contained(work: Awaitable[object]) -> tuple[object, BaseException | None]:
    """Await something; return its result, or the exception that would end the loop if it were raised."""
    try:
        return await work, None
    except ENDS as error:
        return None, error


def _run(loop: asyncio.AbstractEventLoop, closed: threading.Event, owner: str) -> None:
    """Run a loop until it is closed, then cancel its tasks and close it; the main function of its thread."""
    while not closed.is_set():
        with _going_on(owner):
            loop.run_forever()
    ending = loop.create_task(_cancel_others())
    while not ending.done():
        with _going_on(owner):
            loop.run_until_complete(ending)
    _leave(ending.result(), owner)
    loop.close()


@contextmanager
def _going_on(owner: str) -> Iterator[None]:
    try:
        yield
    except ENDS as error:
        _log.error(
            "a task of %s raised %s; its event loop goes on", owner, type(error).__name__, exc_info=error
        )


async def _cancel_others() -> set[asyncio.Task[Any]]:
    """Cancel all tasks but this one, close the generators, and return the tasks that ignore it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    left = await cancel(others)
    for task in others - left:
        if not task.cancelled():
            task.exception()  # nobody waits for it; asyncio logs exceptions that nobody has asked for
    closing = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())
    return left | (await asyncio.wait([closing], timeout=CANCELLATION_SECONDS))[1]


def _leave(tasks: set[asyncio.Task[Any]], owner: str) -> None:
    """Leave tasks that ignore their cancellation as they are, for good.

    Freeing them would run their code once more, in any thread. An endless loop with a bare ``except`` would
    never return from there.
    """
    for task in tasks:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    if tasks:
        _log.error(
            "%s: %d of its tasks still ran %g s after their cancellation; they stay in memory",
            owner, len(tasks), CANCELLATION_SECONDS,
        )  # fmt: skip
