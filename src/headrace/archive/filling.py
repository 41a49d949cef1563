"""The Filler: turns queued keys into stored vectors, batch by batch, in a few threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from headrace.archive.archive import Archive
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.fill_batch import BatchFiller, Encoder, Stopped, Task
from headrace.archive.fill_counts import FillCounts
from headrace.errors import HeadraceError
from headrace.queues.queue import Delivery, Receiver

_log = logging.getLogger(__name__)

BATCH = 64
"""How many keys are embedded together, unless a setting says otherwise."""

_WAIT_SECONDS = 0.5
_MOST_LATER = 4  # batches of contents that are tried again later, which are held meanwhile
_LONGEST_PAUSE_SECONDS = 5.0


class Filler:
    """Fills an archive until it is stopped.

    Of its threads one can embed while another one stores. A message is acknowledged when its batch is stored
    or among the dead letters: a filler that is killed has at most one batch a thread done again. A content
    that may be had later holds nobody up: its message is kept until then, and a few batches of them at most.

    Attributes:
        counts: What came of it, by space.
        versions: What the current embedder of each space makes.
    """

    def __init__(
        self,
        archive: Archive,
        embedders: Mapping[str, Sequence[Embedder]],
        *,
        threads: int = 2,
        batch: int = BATCH,
    ) -> None:
        """Find or make the space versions that the embedders fill.

        Args:
            archive: What is filled.
            embedders: By space, what fills it, the current one last.
            threads: How many batches are at work side by side.
            batch: How many keys make one.

        Raises:
            Unavailable: The store does not answer.
            ConfigError: An embedder makes vectors of another length than the settings say.
        """
        self._archive = archive
        self._batch = batch
        self._stopping = threading.Event()
        encoders = {
            space: [Encoder(one, archive.add_version(space, one).number) for one in those]
            for space, those in embedders.items()
        }
        self.versions = {space: those[-1].version for space, those in encoders.items() if those}
        self.counts = {space: archive.fills.setdefault(space, FillCounts()) for space in encoders}
        self._fillers = [BatchFiller(archive, encoders, self.counts, self._stopping) for _ in range(threads)]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to fill."""
        for number, filler in enumerate(self._fillers):
            thread = threading.Thread(
                target=self._run, args=(filler,), name=f"archive-fill-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Give back what is not done, and end; a batch in an encoder is waited for."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, filler: BatchFiller) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                self._receive(filler)
                pause = 0.0
            except Exception as error:  # noqa: BLE001 - the boundary of the thread: whatever fails, filling goes on
                self._archive.troubles[filler] = f"filling waits: {error}"
                if isinstance(error, HeadraceError):
                    _log.warning("filling waits: %s", error.message)
                else:
                    _log.exception("a batch could not be filled; it will be delivered again")
                pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause or _WAIT_SECONDS)

    def _receive(self, filler: BatchFiller) -> None:
        """Fill batch after batch, as long as nothing fails."""
        receiver = self._archive.queue.receiver()
        later: list[Task] = []
        try:
            while not self._stopping.is_set():
                tasks = self._next(receiver, later)
                self._archive.troubles.pop(filler, None)
                if tasks:
                    later += self._fill(filler, receiver, tasks)
        except Stopped:
            pass
        finally:
            receiver.close()  # gives back what was not acknowledged

    def _next(self, receiver: Receiver, later: list[Task]) -> list[Task]:
        """What is to be done next: what is due of that which is tried again later, and new messages."""
        first = min((task.due for task in later), default=float("inf"))
        wait = min(_WAIT_SECONDS, max(0.0, first - time.monotonic()))
        deliveries: Sequence[Delivery] = ()
        if len(later) < _MOST_LATER * self._batch:
            deliveries = receiver.receive(self._batch, wait)
        else:
            self._stopping.wait(wait)
            receiver.keep()
        now = time.monotonic()
        due = [task for task in later if task.due <= now]
        later[:] = [task for task in later if task.due > now]
        return due + [Task(delivery) for delivery in deliveries]

    def _fill(self, filler: BatchFiller, receiver: Receiver, tasks: Sequence[Task]) -> list[Task]:
        """Fill what can be; give what is to be tried again later."""
        with _Kept(receiver, self._archive.config.queue.visibility_seconds) as kept:
            later = filler.fill(tasks)
        kept.check()
        held = {id(task.delivery) for task in later}
        receiver.acknowledge([task.delivery for task in tasks if id(task.delivery) not in held])
        return later


class _Kept:
    """Says to the queue, from another thread, that a batch is still being worked on."""

    def __init__(self, receiver: Receiver, visibility_seconds: float) -> None:
        self._receiver = receiver
        self._every = visibility_seconds / 3
        self._done = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._keep, name="archive-keep", daemon=True)

    def __enter__(self) -> _Kept:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def check(self) -> None:
        """Log what kept the queue from hearing it: the batch may be delivered twice."""
        if self._failure is not None:
            _log.warning("the queue did not hear that a batch is being filled: %s", self._failure)

    def _keep(self) -> None:
        while not self._done.wait(self._every):
            try:
                self._receiver.keep()
            except Exception as error:  # noqa: BLE001 - the batch goes on; at worst it is delivered again
                self._failure = error
