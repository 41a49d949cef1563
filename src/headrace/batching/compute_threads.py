"""Worker threads of one serving thread, each with a queue of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

WorkT = TypeVar("WorkT")


class Worker(Generic[WorkT]):
    """One worker thread, as the serving thread sees it.

    Attributes:
        queue: Pieces of work for the thread; None ends it.
        pieces: Number of pieces in flight: given to the thread and not taken back.
    """

    __slots__ = ("pieces", "queue")

    def __init__(self) -> None:
        """Create an empty queue."""
        self.queue: SimpleQueue[WorkT | None] = SimpleQueue()
        self.pieces = 0


class Threads(Generic[WorkT]):
    """A pool of threads that are started on first use.

    The idle thread that worked last gets the next piece. Thread-local state (caches, a library's state) is
    reused, and threads that are not needed stay asleep.

    Attributes:
        on_wait: Called in a pool thread whose work is about to wait for other work; see ``say_waiting``.
        threads: The most threads.
    """

    def __init__(self, name: str, most: int, work: Callable[[WorkT], None]) -> None:
        """Create the pool without starting a thread.

        Args:
            name: Prefix of the threads' names.
            most: The most threads.
            work: Function that does one piece of work; must not raise.
        """
        self.on_wait: Callable[[], object] = lambda: None
        self._name = name
        self.threads = most
        self._work = work
        self._workers: list[Worker[WorkT]] = []
        self._idle: list[Worker[WorkT]] = []

    def give(self, piece: WorkT) -> Worker[WorkT] | None:
        """Give a piece to an idle thread, or to a new one if none is idle. Serving thread only.

        If no thread can be added, the piece is queued for the thread with the fewest pieces.

        Returns:
            The worker, for ``take_back``; None if the system refuses to start the first thread.
        """
        worker = self._idle.pop() if self._idle else self._one_more()
        if worker is not None:
            worker.pieces += 1
            worker.queue.put(piece)
        return worker

    def take_back(self, worker: Worker[WorkT]) -> None:
        """Record that a worker has finished a piece. Serving thread only."""
        worker.pieces -= 1
        if worker.pieces == 0:
            self._idle.append(worker)

    def start(self, first: Callable[[], object]) -> None:
        """Start one more thread, run a function in it, and wait for that function to return.

        The thread inherits the priority of the calling thread. Call this only before the first ``give``.

        Args:
            first: Function that the thread runs before its first piece.

        Raises:
            RuntimeError: The system refuses to start a thread.
            BaseException: Any exception of ``first``; the thread stays in the pool.
        """
        done: Future[object] = Future()
        worker = self._start(lambda: _settle(done, first))
        self._idle.insert(0, worker)  # `give` pops from the end: the thread started first works first
        done.result()

    def has_this_thread(self) -> bool:
        """Return whether the running thread belongs to this pool."""
        return getattr(_here, "threads", None) is self

    def stop(self) -> None:
        """Make the threads end after the work already given to them; does not wait for that."""
        for worker in self._workers:
            worker.queue.put(None)

    def _one_more(self) -> Worker[WorkT] | None:
        if len(self._workers) < self.threads:
            try:
                return self._start()
            except RuntimeError:  # the system has no more threads: share the existing ones
                pass
        return min(self._workers, key=lambda worker: worker.pieces, default=None)

    def _start(self, *first: Callable[[], object]) -> Worker[WorkT]:
        worker: Worker[WorkT] = Worker()
        name = f"{self._name}/{len(self._workers)}"
        # A Thread keeps its arguments until it ends. The list lets `_run` drop the function after the call.
        threading.Thread(target=self._run, args=(worker.queue, [*first]), name=name, daemon=True).start()
        self._workers.append(worker)
        return worker

    def _run(self, queue: SimpleQueue[WorkT | None], first: list[Callable[[], object]]) -> None:
        _here.threads = self
        while first:
            first.pop()()
        while (piece := queue.get()) is not None:
            self._work(piece)
            del piece  # otherwise an idle thread would keep its last batch in memory


def say_waiting() -> None:
    """Report that the running thread is about to wait for other work; a no-op outside ``Threads``."""
    threads: Threads[object] | None = getattr(_here, "threads", None)
    if threads is not None:
        threads.on_wait()


def _settle(done: Future[object], call: Callable[[], object]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
        done.set_exception(error)


_here = threading.local()
