"""Tasks of an event loop that compute batches, for a Servable whose calls are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from headrace.batching.compute_threads import Worker

WorkT = TypeVar("WorkT")


class Tasks(Generic[WorkT]):
    """Runs pieces of work as tasks; the counterpart of ``Threads`` for waiting that occupies no thread.

    Attributes:
        on_wait: As in ``Threads``; never called, as the number of tasks is not adapted.
        threads: Number of threads in which models run: the loop's.
    """

    threads = 1

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[WorkT], Coroutine[object, object, object]]
    ) -> None:
        """Create the pool.

        Args:
            loop: The loop, which runs in another thread.
            work: Coroutine function that does one piece of work; must not raise.
        """
        self.on_wait: Callable[[], object] = lambda: None
        self._loop = loop
        self._work = work
        self._worker: Worker[WorkT] = Worker()
        self._running: set[asyncio.Task[object]] = set()  # a loop holds its tasks weakly

    def give(self, piece: WorkT) -> Worker[WorkT]:
        """Start a task for a piece of work. Serving thread only."""
        self._worker.pieces += 1
        self._loop.call_soon_threadsafe(self._begin, piece)
        return self._worker

    def take_back(self, worker: Worker[WorkT]) -> None:
        """Record that a piece is finished. Serving thread only."""
        worker.pieces -= 1

    def start(self, first: Callable[[], object]) -> None:
        """Run a function in the calling thread, because there is no thread to start.

        Raises:
            BaseException: Any exception of ``first``.
        """
        first()

    def has_this_thread(self) -> bool:
        """Return whether the running thread is the loop's; code that blocks it keeps all tasks waiting."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no loop runs in this thread
            return False

    def stop(self) -> None:
        """Do nothing: the Servable ends its loop when it is closed."""

    def _begin(self, piece: WorkT) -> None:
        task = self._loop.create_task(self._work(piece))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
