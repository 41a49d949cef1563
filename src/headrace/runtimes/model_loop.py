"""The event loop in which the coroutines of a model's own code run.

asyncio stops a loop in which a coroutine raises SystemExit or KeyboardInterrupt, and whoever waits for one of
its tasks would wait for ever. Here a loop runs until it is closed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from headrace.base.event_loop import run_in

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
        self._closed.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


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
    loop.close()


@contextmanager
def _going_on(owner: str) -> Iterator[None]:
    try:
        yield
    except ENDS as error:
        _log.error(
            "a task of %s raised %s; its event loop goes on", owner, type(error).__name__, exc_info=error
        )


async def _cancel_others() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
