"""The instances of a Batcher: how many of its batches run side by side, and in which threads."""

from __future__ import annotations

from collections.abc import Callable

from headrace.batching.batch import Batch
from headrace.batching.concurrency import ConcurrencyLimit
from headrace.batching.request import Origin
from headrace.batching.threads import Threads


class Instances:
    """The places where batches are computed beside the serving thread.

    Attributes:
        most: How many there are.
        in_use: How many of them are used: as many as compute the most rows a second.
        allowed: How many batches may run side by side at this moment, while another number is tried.
    """

    __slots__ = ("_keep_all", "_limit", "_threads", "allowed", "in_use", "most")

    def __init__(
        self, most: int, origin: Origin, work: Callable[[Batch], None], keep_all: Callable[[], object]
    ) -> None:
        """Use all of them; no thread is started yet.

        Args:
            most: How many there are.
            origin: Which model and version they are of.
            work: Computes one batch, in a thread of theirs; must not raise.
            keep_all: Called in such a thread: has ``use_all`` called in the serving thread.
        """
        self.most = self.in_use = self.allowed = most
        self._limit = ConcurrencyLimit(most, origin) if most > 1 else None
        self._keep_all = keep_all
        self._threads: Threads[Batch] = Threads(f"{origin.model}/{origin.version}", most, work)
        self._threads.on_wait = self._waits

    def start(self, first: Callable[[], object]) -> None:
        """Start one more thread, which makes a call before its first batch; see ``Threads.start``."""
        self._threads.start(first)

    def give(self, batch: Batch) -> bool:
        """Have a batch computed; False if the system has no thread for it."""
        batch.worker = self._threads.give(batch)
        return batch.worker is not None

    def begin(self, now: float) -> None:
        """Take note that a batch runs now, and that none did before."""
        if self._limit is not None:
            self._limit.busy_since = now

    def finished(self, batch: Batch) -> None:
        """Take note that a batch has been computed."""
        if batch.worker is not None:
            self._threads.take_back(batch.worker)
        limit = self._limit
        if limit is not None:
            limit.finished(batch.rows, batch.timings.formed, batch.timings.finished)
            self.in_use, self.allowed = limit.in_use, limit.allowed

    def use_all(self) -> None:
        """Use all of them from now on, whatever was measured."""
        self._limit = None
        self.in_use = self.allowed = self.most

    def is_this_thread(self) -> bool:
        """Whether the running thread is one of theirs: the model's own code asks."""
        return self._threads.has_this_thread()

    def stop(self) -> None:
        """Let the threads end once they have done what they were given; does not wait."""
        self._threads.stop()

    def _waits(self) -> None:
        """In a thread of theirs whose model waits for another one, perhaps for this very one."""
        if self._limit is not None:
            self._keep_all()
