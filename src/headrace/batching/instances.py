"""The instances of a Batcher: the threads that compute its batches, and how many run concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from headrace.base.clock import Clock, Timer
from headrace.batching.batch_queue import Batch
from headrace.batching.compute import Computing
from headrace.batching.compute_threads import Threads, Worker
from headrace.batching.concurrency import ConcurrencyLimit
from headrace.batching.request import Origin


class Tasks:
    """Computes batches as tasks of an event loop, so that waiting occupies no thread; used like ``Threads``.

    Attributes:
        on_wait: As in ``Threads``; never called, as the number of tasks is not adapted.
        threads: Number of threads in which models run: the loop's.
    """

    threads = 1

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[Batch], Coroutine[object, object, object]]
    ) -> None:
        """Create the pool.

        Args:
            loop: The loop, which runs in another thread.
            work: Coroutine function that computes one batch; must not raise.
        """
        self.on_wait: Callable[[], object] = lambda: None
        self._loop = loop
        self._work = work
        self._worker: Worker[Batch] = Worker()
        self._running: set[asyncio.Task[object]] = set()  # a loop holds its tasks weakly

    def give(self, batch: Batch) -> Worker[Batch]:
        """Start a task for a batch. Serving thread only."""
        self._worker.pieces += 1
        self._loop.call_soon_threadsafe(self._begin, batch)
        return self._worker

    def take_back(self, worker: Worker[Batch]) -> None:
        """Record that a batch is computed. Serving thread only."""
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

    def _begin(self, batch: Batch) -> None:
        task = self._loop.create_task(self._work(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def pool_of(
    computing: Computing, origin: Origin, most: int, finish: Callable[[Batch], object]
) -> Threads[Batch] | Tasks:
    """Return a pool that computes batches: tasks if the Servable's calls are coroutines, otherwise threads.

    Args:
        computing: Calls the Servable.
        origin: The model and version.
        most: The most threads.
        finish: Called in the pool's thread when a batch has been computed; must not raise.
    """

    def compute(batch: Batch) -> None:
        computing.compute(batch)
        finish(batch)

    async def compute_async(batch: Batch) -> None:
        await computing.compute_async(batch)
        finish(batch)

    if computing.loop is not None:
        return Tasks(computing.loop, compute_async)
    return Threads(f"{origin.model}/{origin.version}", most, compute)


class Instances:
    """The instances that compute batches outside the serving thread: threads, or tasks of an event loop.

    Attributes:
        most: Number of instances.
        in_use: Number of instances in use: the number with the highest measured rows per second.
        allowed: Number of batches that may run now; differs from ``in_use`` while another number is tried.
    """

    __slots__ = (
        "_clock", "_finished", "_given", "_limit", "_on_more", "_pool", "_timer",
        "allowed", "in_use", "most",
    )  # fmt: skip

    def __init__(
        self,
        most: int,
        origin: Origin,
        pool: Threads[Batch] | Tasks,
        clock: Clock,
        on_more: Callable[[], object],
    ) -> None:
        """Begin with all instances in use; starts no thread.

        Args:
            most: Number of instances.
            origin: The model and version.
            pool: The threads or tasks.
            clock: The serving thread's clock.
            on_more: Called in the serving thread when ``allowed`` has been raised to ``most``.
        """
        self.most = self.in_use = self.allowed = most
        adapts = most > 1 and isinstance(pool, Threads)  # tasks compete for nothing while they wait
        self._limit = ConcurrencyLimit(most, origin) if adapts else None
        self._clock = clock
        self._on_more = on_more
        self._given = self._finished = 0
        self._timer: Timer | None = None
        self._pool = pool
        self._pool.on_wait = self._waits

    @property
    def threads(self) -> int:
        """Number of threads in which the model runs."""
        return self._pool.threads

    def start(self, first: Callable[[], object]) -> None:
        """Start one more thread that runs a function before its first batch; see ``Threads.start``."""
        self._pool.start(first)

    def give(self, batch: Batch) -> bool:
        """Give a batch to a thread; return False if the system refuses to start the first one."""
        batch.worker = self._pool.give(batch)
        if batch.worker is None:
            return False
        self._given += 1
        if self._limit is not None and self.allowed < self.most and self._timer is None:
            self._watch(self._limit)
        return True

    def begin(self, now: float) -> None:
        """Record the time at which a batch starts while no other runs."""
        if self._limit is not None:
            self._limit.busy_since = now

    def finished(self, batch: Batch) -> None:
        """Record that a batch has been computed."""
        if batch.worker is not None:
            self._pool.take_back(batch.worker)
            self._finished += 1
        limit = self._limit
        if limit is not None:
            limit.finished(batch.rows, batch.timings.formed, batch.timings.finished)
            self.in_use, self.allowed = limit.in_use, limit.allowed

    def keep_all(self) -> None:
        """Use all instances from now on and stop comparing numbers of them."""
        self._limit = None
        self._use_all()

    def is_this_thread(self) -> bool:
        """Return whether the running thread is an instance's, so that the model calls itself."""
        return self._pool.has_this_thread()

    def is_the_only_thread(self) -> bool:
        """Return whether the running thread is an instance's, and no other thread computes batches."""
        return (self.most == 1 or isinstance(self._pool, Tasks)) and self._pool.has_this_thread()

    def stop(self) -> None:
        """Make the threads end after the work already given to them; does not wait for that."""
        self._pool.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waits(self) -> None:
        """Use all instances: this thread's model waits for another model, which may be itself."""
        if self._limit is not None:
            self._clock.call_soon_threadsafe(self.keep_all)

    # --- detection of hanging calls while not all instances are in use ---

    def _watch(self, limit: ConcurrencyLimit) -> None:
        """Start a timer that checks for progress; no timer runs while all instances are in use."""
        self._timer = self._clock.call_later(limit.patience_seconds, self._look, self._finished)

    def _look(self, finished: int) -> None:
        """Use all instances if no batch has finished since the last check; the others may still answer."""
        self._timer = None
        limit = self._limit
        if limit is None or self.allowed == self.most or self._given == self._finished:
            return
        if self._finished != finished:
            self._watch(limit)
            return
        limit.use_all(self._clock.now())
        self._use_all()

    def _use_all(self) -> None:
        self.in_use = self.allowed = self.most
        self._on_more()
