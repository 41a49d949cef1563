"""The event loop in which the coroutines of a model's own code run."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable

from headrace.base.event_loop import run_in


class ModelLoop:
    """The event loop of one version's coroutines, in a thread that is started when it is needed."""

    def __init__(self) -> None:
        """Begin without a loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="model loop", daemon=True)
            self._thread.start()
        return self._loop

    def is_this_thread(self) -> bool:
        """Return whether the running thread is the loop's."""
        return threading.current_thread() is self._thread

    def result(self, method: Callable[..., object], *arguments: object) -> object:
        """Call a method of the model, in the loop if it is a coroutine function, and return its result."""
        if not inspect.iscoroutinefunction(method):
            return method(*arguments)
        return run_in(self.start(), method(*arguments))

    def close(self) -> None:
        """Cancel the tasks that the model has left, and end the loop and its thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then cancel its tasks and close it; the main function of its thread."""
    loop.run_forever()
    loop.run_until_complete(_cancel_others())
    loop.close()


async def _cancel_others() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
