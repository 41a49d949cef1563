"""The threads in which a Servable runs: as many as it has instances, started when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

WorkT = TypeVar("WorkT")


class Instances(Generic[WorkT]):
    """Threads that take one piece of work after another; given work by the serving thread only."""

    def __init__(self, name: str, limit: int, work: Callable[[WorkT], None]) -> None:
        """Prepare, without starting a thread.

        Args:
            name: What the threads are called in stack dumps.
            limit: The most threads.
            work: Does one piece; must not raise.
        """
        self._name = name
        self._limit = limit
        self._work = work
        self._queue: SimpleQueue[WorkT | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def give(self, piece: WorkT, busy: int) -> bool:
        """Have a piece done by an idle thread.

        Args:
            piece: The work.
            busy: How many pieces are being done already; a thread is started when all that there are have
                one.

        Returns:
            Whether it will be done; not if the system refuses to start the first thread.
        """
        if busy >= len(self._threads) and len(self._threads) < self._limit:
            thread = threading.Thread(
                target=self._run, name=f"{self._name}/{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process: those that there are do it in turn
                if not self._threads:
                    return False
            else:
                self._threads.append(thread)
        self._queue.put(piece)
        return True

    def has_this_thread(self) -> bool:
        """Whether the running thread is one of them: the model's own code asks."""
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        """Let the threads end once they have done what they were given; does not wait."""
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            self._work(piece)
            del piece  # or an idle thread would keep its last batch, however large
