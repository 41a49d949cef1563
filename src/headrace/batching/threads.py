"""Threads that work for one serving thread: each takes one piece of work after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

WorkT = TypeVar("WorkT")


class Worker(Generic[WorkT]):
    """One thread, as the serving thread sees it.

    Attributes:
        queue: Its pieces of work; None ends it.
        pieces: How many it has been given that have not come back.
    """

    __slots__ = ("pieces", "queue")

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.queue: SimpleQueue[WorkT | None] = SimpleQueue()
        self.pieces = 0


class Threads(Generic[WorkT]):
    """Threads that are started when they are first needed.

    The idle thread that worked last is the next to work. So what a thread keeps for itself (caches, a
    library's state) is used again, and threads that are not needed stay asleep.

    Attributes:
        on_wait: Called in one of them when its work is about to wait for other work: see ``say_waiting``.
    """

    def __init__(self, name: str, most: int, work: Callable[[WorkT], None]) -> None:
        """Start none yet.

        Args:
            name: The threads' name in stack dumps.
            most: The most threads.
            work: Does one piece; must not raise.
        """
        self.on_wait: Callable[[], object] = lambda: None
        self._name = name
        self._most = most
        self._work = work
        self._workers: list[Worker[WorkT]] = []
        self._idle: list[Worker[WorkT]] = []

    def give(self, piece: WorkT) -> Worker[WorkT] | None:
        """Have a piece done by an idle thread, or by a new one if none is idle. Serving thread only.

        Returns:
            Who does it, for ``take_back``; None if the system refuses to start the first thread.
        """
        worker = self._idle.pop() if self._idle else self._one_more()
        if worker is not None:
            worker.pieces += 1
            worker.queue.put(piece)
        return worker

    def take_back(self, worker: Worker[WorkT]) -> None:
        """Take note that a piece is done. Serving thread only."""
        worker.pieces -= 1
        if worker.pieces == 0:
            self._idle.append(worker)

    def start(self, first: Callable[[], object]) -> None:
        """Start one more thread, which makes a call before it works, and wait for that call.

        It has the priority of the thread that calls this. Only before the first piece is given.

        Args:
            first: The call.

        Raises:
            RuntimeError: The system refuses to start a thread.
            BaseException: Whatever the call raises; the thread works all the same.
        """
        done: Future[object] = Future()
        worker = self._start(lambda: _settle(done, first))
        self._idle.insert(0, worker)  # the first one started works first
        done.result()

    def has_this_thread(self) -> bool:
        """Whether the running thread is one of them."""
        return getattr(_here, "threads", None) is self

    def stop(self) -> None:
        """Let the threads end once they have done what they were given; does not wait."""
        for worker in self._workers:
            worker.queue.put(None)

    def _one_more(self) -> Worker[WorkT] | None:
        if len(self._workers) < self._most:
            try:
                return self._start()
            except RuntimeError:  # no more threads for this process: those that there are do it in turn
                pass
        return min(self._workers, key=lambda worker: worker.pieces, default=None)

    def _start(self, *first: Callable[[], object]) -> Worker[WorkT]:
        worker: Worker[WorkT] = Worker()
        name = f"{self._name}/{len(self._workers)}"
        # A Thread keeps its arguments for as long as it runs: the call is taken out of a list.
        threading.Thread(target=self._run, args=(worker.queue, [*first]), name=name, daemon=True).start()
        self._workers.append(worker)
        return worker

    def _run(self, queue: SimpleQueue[WorkT | None], first: list[Callable[[], object]]) -> None:
        _here.threads = self
        while first:
            first.pop()()
        while (piece := queue.get()) is not None:
            self._work(piece)
            del piece  # or an idle thread would keep its last batch, however large


def say_waiting() -> None:
    """Say that the running thread's work waits for other work, if the thread is one of ``Threads``."""
    threads: Threads[object] | None = getattr(_here, "threads", None)
    if threads is not None:
        threads.on_wait()


def _settle(done: Future[object], call: Callable[[], object]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001  # It is raised where it is waited for.
        done.set_exception(error)


_here = threading.local()
