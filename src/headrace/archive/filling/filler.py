"""The Filler: turns queued keys into stored vectors, batch by batch, in a few threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.filling.encoder_calls import FillSources, Stop, Stopped, VersionEmbedder
from headrace.archive.filling.fill_batch import BatchFiller
from headrace.archive.filling.pooled_embedder import Dependency, PooledEmbedder
from headrace.archive.filling.retries_and_dead_letters import HeldMessages, Task
from headrace.archive.filling.table_contents import TableTexts
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.reports import FillCounts
from headrace.archive.model.archive_toml import table_column
from headrace.base.errors import HeadraceError, Unavailable
from headrace.storage.queues.queue import Receiver

_log = logging.getLogger(__name__)

BATCH = 64
"""Default number of keys embedded together."""

_WAIT_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 1.0
_LAST_SECONDS = 5.0
_RESTS = 4.0  # seconds of pause per second spent on putting messages back: at most a fifth of the time
_LONGEST_PAUSE_SECONDS = 5.0


class Filler:
    """Fills an archive until it is stopped.

    One of its threads can embed while another stores. A message is acknowledged when its batch is stored or
    among the dead letters, so that a filler that is killed repeats at most one batch per thread. A content
    that may become available later delays no other key: its message is held until then, up to a few batches.
    The same holds for an embedder that is down, hangs or is not open yet, and for a table without rows. The
    messages of its spaces are set aside; if they are many or old, they go back to the queue's end.

    Attributes:
        counts: Filling counts, by space.
    """

    def __init__(
        self,
        archive: Archive,
        embedders: Mapping[str, Sequence[Embedder | PooledEmbedder]],
        *,
        threads: int = 2,
        batch: int = BATCH,
    ) -> None:
        """Find or create the space versions that the embedders fill.

        Args:
            archive: The archive.
            embedders: Embedders by space, the current one last. A ``PooledEmbedder`` need not be open
                yet. If a space has no others, the store need not answer yet, either.
            threads: Number of batches processed concurrently.
            batch: Number of keys in a batch.

        Raises:
            Unavailable: The store does not answer, and a space has an embedder that is not pooled.
            ConfigError: An embedder's dimension differs from the settings'.
        """
        self._archive = archive
        self._batch = batch
        self._stop = Stop()
        self._wanted = {
            space: pooled_embedders_of(archive, space, those) for space, those in embedders.items()
        }
        self._pooled = list(dict.fromkeys(one for those in self._wanted.values() for one in those))
        awaited = {space: those[-1] for space, those in self._wanted.items() if those}
        self._filled = FillSources(dict.fromkeys(self._wanted, ()), awaited, _texts_of(archive, self._wanted))
        self.counts = {space: archive.fills.setdefault(space, FillCounts()) for space in self._wanted}
        for space in self._wanted:
            try:
                self._find_versions(space)
            except Unavailable:
                if not all(isinstance(one, PooledEmbedder) for one in embedders[space]):
                    raise
        self._fillers = [BatchFiller(archive, self._filled, self.counts, self._stop) for _ in range(threads)]
        self._threads: list[threading.Thread] = []

    @property
    def versions(self) -> dict[str, int]:
        """Version that the current embedder of each space fills, for spaces with an open embedder."""
        return {space: those[-1].version for space, those in self._filled.encoders.items() if those}

    def start(self) -> None:
        """Start filling."""
        works: list[Callable[[], None]] = [partial(self._run, filler) for filler in self._fillers]
        for number, work in enumerate([*works, self._look]):
            thread = threading.Thread(target=work, name=f"archive-fill-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, seconds: float = _LAST_SECONDS) -> None:
        """Give unfinished messages back to the queue, and end the threads.

        Args:
            seconds: Longest wait for embedders at work; their messages are then given back too.
        """
        self._stop.until = time.monotonic() + seconds
        self._stop.event.set()
        for thread in self._threads:
            thread.join()
        for one in self._askable:
            self._archive.troubles.pop(one, None)

    # ---- availability of embedders -----------------------------------------------------------------

    @property
    def _askable(self) -> Sequence[Dependency]:
        return *self._pooled, *self._filled.texts.values()

    def _look(self) -> None:
        """Open embedders, find their space versions, and report faults, until stopped."""
        told = ""
        while not self._stop.event.wait(_AGAIN_SECONDS if told else _LOOK_SECONDS):
            trouble = ""
            for one in self._askable:
                one.look()
                if text := one.trouble:
                    self._archive.troubles[one] = text
                else:
                    self._archive.troubles.pop(one, None)
            for space in self._wanted:
                try:
                    self._find_versions(space)
                except Exception as error:  # noqa: BLE001 - thread boundary: the cause may be removed
                    reason = error.message if isinstance(error, HeadraceError) else repr(error)
                    trouble = f"the space {space!r} cannot be filled yet: {reason}"
            if trouble:
                self._archive.troubles[self] = trouble
            else:
                self._archive.troubles.pop(self, None)
            if trouble and trouble != told:
                _log.warning("%s", trouble)
            told = trouble

    def _find_versions(self, space: str) -> None:
        """Find or create the versions that the embedders of a space fill, once all of them are open.

        Raises:
            HeadraceError: The store does not answer, or the embedder does not fit.
        """
        pooled, filled = self._wanted[space], self._filled
        opened = [(one, embedder) for one in pooled if (embedder := one.embedder) is not None]
        known = [(encoder.pooled, encoder.embedder) for encoder in filled.encoders[space]]
        if len(opened) < len(pooled) or known != opened:
            filled.awaited.update(dict.fromkeys(self._spaces_of(pooled), pooled[-1]))
        if len(opened) < len(pooled) or space not in filled.awaited:
            return
        filled.encoders[space] = [
            VersionEmbedder(one, embedder, self._archive.add_version(space, embedder).number)
            for one, embedder in opened
        ]
        del filled.awaited[space]
        for one, embedder in opened:
            if one.embedder is embedder and not filled.awaited.keys() & self._spaces_of([one]):
                one.is_ready = True

    def _ways(self) -> list[Sequence[Dependency]]:
        """Return what each way to fill a space depends on: an embedder, and the table of contents, if any."""
        texts = self._filled.texts
        return [
            (one, texts[space]) if space in texts else (one,)
            for space, those in self._wanted.items()
            for one in those
        ]

    def _spaces_of(self, pooled: Sequence[PooledEmbedder]) -> set[str]:
        """Return the spaces that any of the embedders fills."""
        return {space for space, those in self._wanted.items() if not set(those).isdisjoint(pooled)}

    # ---- one thread --------------------------------------------------------------------------------

    def _run(self, filler: BatchFiller) -> None:
        pause = 0.0
        while not self._stop.event.wait(pause):
            try:
                self._receive(filler)
                pause = 0.0
            except Exception as error:  # noqa: BLE001 - thread boundary: filling goes on after any error
                self._archive.troubles[filler] = f"filling waits: {error}"
                if isinstance(error, HeadraceError):
                    _log.warning("filling waits: %s", error.message)
                else:
                    _log.exception("a batch could not be filled; it will be delivered again")
                pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause or _WAIT_SECONDS)

    def _receive(self, filler: BatchFiller) -> None:
        """Fill batch after batch until something fails or the filler stops."""
        filler.begin_anew()
        receiver = self._archive.queue.receiver()
        held = HeldMessages(self._ways(), self._batch)
        try:
            while not self._stop.event.is_set():
                tasks = self._next(filler, receiver, held)
                self._archive.troubles.pop(filler, None)
                if tasks:
                    held.add(self._fill(filler, receiver, tasks), time.monotonic())
            self._finish(filler, receiver, held)
        except Stopped:
            pass
        finally:
            receiver.close()  # gives unacknowledged messages back

    def _next(self, filler: BatchFiller, receiver: Receiver, held: HeldMessages) -> Sequence[Task]:
        """Return the tasks to do next: held ones that are due, or new messages."""
        now = time.monotonic()
        if excess := held.excess(now):
            receiver.release([task.delivery for task in excess])
        if back := held.overflow(now):
            filler.put_back(back)
            receiver.acknowledge([task.delivery for task in back])
            held.rest(now, _RESTS * (time.monotonic() - now))
        if due := held.due(now):
            return due
        wait = held.wait_seconds(now, _WAIT_SECONDS)
        if held.wants_more(now):
            return [Task(delivery) for delivery in receiver.receive(self._batch, wait)]
        self._stop.event.wait(wait)
        receiver.keep()
        return ()

    def _fill(self, filler: BatchFiller, receiver: Receiver, tasks: Sequence[Task]) -> list[Task]:
        """Fill tasks, acknowledge those that are done, and return those to retry later."""
        with _VisibilityExtender(receiver, self._archive.config.queue.visibility_seconds) as extender:
            later = filler.fill(tasks)
        extender.check()
        held = {id(task.delivery) for task in later}
        receiver.acknowledge([task.delivery for task in tasks if id(task.delivery) not in held])
        return later

    def _finish(self, filler: BatchFiller, receiver: Receiver, held: HeldMessages) -> None:
        """Store the results of pending embedder calls that end before the stop's deadline."""
        for call in held.calls:
            if call.ended.wait(max(0.0, self._stop.until - time.monotonic())):
                self._fill(filler, receiver, held.due(0.0))


def pooled_embedders_of(
    archive: Archive, space: str, embedders: Sequence[Embedder | PooledEmbedder]
) -> Sequence[PooledEmbedder]:
    """Wrap embedders in ``PooledEmbedder``; those that are wrapped already are returned as they are."""
    name = archive.config.spaces[space].embedder or space
    return [
        one if isinstance(one, PooledEmbedder) else PooledEmbedder(name, [space], embedder=one)
        for one in embedders
    ]


def _texts_of(archive: Archive, spaces: Iterable[str]) -> dict[str, TableTexts]:
    """Return the tables that contents come from, by space."""
    found = {}
    for space in spaces:
        source = table_column(archive.config.spaces[space].content)
        if source is not None:
            found[space] = TableTexts(space, source, archive.store, archive.record)
    return found


class _VisibilityExtender:
    """Extends the visibility timeout of a batch, from a thread of its own, while the batch is processed."""

    def __init__(self, receiver: Receiver, visibility_seconds: float) -> None:
        self._receiver = receiver
        self._every = visibility_seconds / 3
        self._done = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._keep, name="archive-keep", daemon=True)

    def __enter__(self) -> _VisibilityExtender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def check(self) -> None:
        """Log a failure to extend the timeout, as the batch may then be delivered twice."""
        if self._failure is not None:
            _log.warning("the visibility timeout of a batch could not be extended: %s", self._failure)

    def _keep(self) -> None:
        while not self._done.wait(self._every):
            try:
                self._receiver.keep()
            except Exception as error:  # noqa: BLE001 - the batch goes on; at worst it is delivered again
                self._failure = error
