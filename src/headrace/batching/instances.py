"""The instances of a Batcher: how many of its batches run side by side, and in which threads."""

from __future__ import annotations

from collections.abc import Callable

from headrace.batching.batch import Batch
from headrace.batching.concurrency import ConcurrencyLimit
from headrace.batching.request import Origin
from headrace.batching.threads import Threads
from headrace.clock import Clock, Timer


class Instances:
    """The places where batches are computed beside the serving thread.

    Attributes:
        most: How many there are.
        in_use: How many of them are used: as many as compute the most rows a second.
        allowed: How many batches may run side by side at this moment, while another number is tried.
    """

    __slots__ = (
        "_clock", "_finished", "_given", "_limit", "_on_more", "_threads", "_timer",
        "allowed", "in_use", "most",
    )  # fmt: skip

    def __init__(
        self,
        most: int,
        origin: Origin,
        work: Callable[[Batch], None],
        clock: Clock,
        on_more: Callable[[], object],
    ) -> None:
        """Use all of them; no thread is started yet.

        Args:
            most: How many there are.
            origin: Which model and version they are of.
            work: Computes one batch, in a thread of theirs; must not raise.
            clock: The serving thread's.
            on_more: Called in the serving thread when more batches may run than a moment ago.
        """
        self.most = self.in_use = self.allowed = most
        self._limit = ConcurrencyLimit(most, origin) if most > 1 else None
        self._clock = clock
        self._on_more = on_more
        self._given = self._finished = 0
        self._timer: Timer | None = None
        self._threads: Threads[Batch] = Threads(f"{origin.model}/{origin.version}", most, work)
        self._threads.on_wait = self._waits

    def start(self, first: Callable[[], object]) -> None:
        """Start one more thread, which makes a call before its first batch; see ``Threads.start``."""
        self._threads.start(first)

    def give(self, batch: Batch) -> bool:
        """Have a batch computed; False if the system has no thread for it."""
        batch.worker = self._threads.give(batch)
        if batch.worker is None:
            return False
        self._given += 1
        if self._limit is not None and self.allowed < self.most and self._timer is None:
            self._watch(self._limit)
        return True

    def begin(self, now: float) -> None:
        """Take note that a batch runs now, and that none did before."""
        if self._limit is not None:
            self._limit.busy_since = now

    def finished(self, batch: Batch) -> None:
        """Take note that a batch has been computed."""
        if batch.worker is not None:
            self._threads.take_back(batch.worker)
            self._finished += 1
        limit = self._limit
        if limit is not None:
            limit.finished(batch.rows, batch.timings.formed, batch.timings.finished)
            self.in_use, self.allowed = limit.in_use, limit.allowed

    def keep_all(self) -> None:
        """Use all of them from now on, whatever was measured."""
        self._limit = None
        self._use_all()

    def is_this_thread(self) -> bool:
        """Whether the running thread is one of theirs: the model's own code asks."""
        return self._threads.has_this_thread()

    def stop(self) -> None:
        """Let the threads end once they have done what they were given; does not wait."""
        self._threads.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waits(self) -> None:
        """In a thread of theirs whose model waits for another one, perhaps for this very one."""
        if self._limit is not None:
            self._clock.call_soon_threadsafe(self.keep_all)

    # --- calls that hang while fewer instances are used than there are ---

    def _watch(self, limit: ConcurrencyLimit) -> None:
        """Look later whether a batch has been computed; no timer runs while all instances are used."""
        self._timer = self._clock.call_later(limit.patience_seconds, self._look, self._finished)

    def _look(self, finished: int) -> None:
        """Use all instances if those in use have computed nothing since: the others may still answer."""
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
