"""Reads of a store that is not on this machine: made by a few threads, for all lookups together.

A key that is being read is not read again for another lookup. Reads that wait are made in one call. While the
store does not answer, nothing is asked of it but one probe after the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from headrace.archive.breaker import Breaker
from headrace.errors import HeadraceError
from headrace.stores.store import Store

_log = logging.getLogger(__name__)

_THREADS = 4
_MOST_KEYS_A_CALL = 2000
_MOST_KEYS_WAITING = 200_000
_PROBE_SECONDS = 0.5
_PROBE = "probe"

Values = list[bytes]
Arrived = Callable[[Sequence[int], Values], None]


class Place(NamedTuple):
    """Where one key's value will be.

    Attributes:
        read: What reads it.
        at: Its place among that one's values.
    """

    read: Future[Values]
    at: int


class _Read(NamedTuple):
    partition: str
    missing: bytes
    keys: list[bytes]
    done: Future[Values]


class Reads:
    """The reads of one store.

    Attributes:
        breaker: Whether the store is asked, and how long to wait for it.
    """

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        """Start the threads.

        Args:
            store: What is read.
            timeout_seconds: How long one of its calls may take.
        """
        self._store = store
        self.breaker = Breaker(timeout_seconds)
        self._changed = threading.Condition()
        self._waiting: deque[_Read] = deque()
        self._flying: dict[tuple[str, bytes], Place] = {}
        self._late: set[Future[Values]] = set()
        self._closed = threading.Event()
        names = [f"archive-read-{number}" for number in range(_THREADS)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self._threads.append(threading.Thread(target=self._probe, name="archive-probe", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(self, partition: str, missing: bytes, keys: Sequence[bytes], arrived: Arrived) -> list[Place]:
        """Have keys read.

        Args:
            partition: Where.
            missing: What stands for a value that is not there.
            keys: What for.
            arrived: Called in another thread with the places of those keys that nobody else was reading, and
                their values, before anybody who waits goes on; not if the store fails.

        Returns:
            Where each value will be; nothing if the store is not asked now.
        """
        if self.breaker.is_open:
            return []
        with self._changed:
            if (
                len(self._flying) > _MOST_KEYS_WAITING
            ):  # a large lookup alone is bounded by its space's max_keys
                return []
            places: list[Place | None] = [self._flying.get((partition, key)) for key in keys]
            new = [place for place, found in enumerate(places) if found is None]
            if new:
                read = _Read(partition, missing, [keys[place] for place in new], Future())
                for index, place in enumerate(new):
                    places[place] = self._flying[partition, keys[place]] = Place(read.done, index)
                read.done.add_done_callback(lambda done: _tell(done, new, arrived))
                self._waiting.append(read)
                self._changed.notify()
        return [place for place in places if place is not None]

    def late(self, waits: Iterable[Future[Values]]) -> None:
        """Somebody has waited for reads for as long as is usual; each read is a trouble once."""
        with self._changed:
            late = {read for read in waits if not read.done()} - self._late
            self._late |= late
        for _ in late:
            self.breaker.troubled()

    def close(self) -> None:
        """End the threads; reads that wait are called off."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            for read in self._waiting:
                read.done.cancel()
            self._waiting.clear()
            self._flying.clear()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                while not self._waiting and not self._closed.is_set():
                    self._changed.wait()
                reads = self._together()
            if reads:
                self._read(reads)

    def _together(self) -> list[_Read]:
        """Reads that make one call: the oldest one, and those after it in the same partition."""
        reads: list[_Read] = []
        keys = 0
        while self._waiting and keys < _MOST_KEYS_A_CALL:
            if reads and self._waiting[0].partition != reads[0].partition:
                break
            reads.append(self._waiting.popleft())
            keys += len(reads[-1].keys)
        return reads

    def _read(self, reads: list[_Read]) -> None:
        keys = [key for read in reads for key in read.keys]
        started = time.monotonic()
        failure: Exception | None = None
        values: Values = []
        try:
            values = self._store.get_many(reads[0].partition, keys, reads[0].missing)
            if len(values) != len(keys):
                raise HeadraceError(f"the store gave {len(values)} values for {len(keys)} keys")
            self.breaker.answered(time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - the boundary to a store, which may be anybody's: lookups go on
            self.breaker.troubled()
            failure = error
            _log.debug("a read of the store failed", exc_info=error)
        start = 0
        for read in reads:
            stop = start + len(read.keys)
            if failure is None:
                read.done.set_result(values[start:stop])
            else:
                read.done.set_exception(failure)
            start = stop
        with self._changed:
            self._late.difference_update(read.done for read in reads)
            for key in keys:
                self._flying.pop((reads[0].partition, key), None)

    def _probe(self) -> None:
        """While the store is not asked, ask it alone; say when that begins and ends."""
        while not self._closed.wait(_PROBE_SECONDS):
            if not self.breaker.is_open:
                continue
            _log.warning("the store does not answer; lookups answer the out-of-vocabulary vector")
            started = time.monotonic()
            while not self._answers():
                if self._closed.wait(_PROBE_SECONDS):
                    return
            self.breaker.close()
            _log.warning("the store answers again", extra={"seconds": round(time.monotonic() - started, 1)})

    def _answers(self) -> bool:
        try:
            self._store.read(_PROBE)
        except Exception:  # noqa: BLE001 - the same boundary
            return False
        return True


def _tell(done: Future[Values], places: Sequence[int], arrived: Arrived) -> None:
    if not done.cancelled() and done.exception() is None:
        try:
            arrived(places, done.result())
        except Exception:  # noqa: BLE001 - else it would be lost in a future: whoever waits is answered all the same
            _log.exception("what a store gave could not be kept")
