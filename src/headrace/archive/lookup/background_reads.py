"""Reads of a remote store, made by a few threads for all lookups together, behind a circuit breaker.

A key that is being read is not read again for another lookup. Pending reads are merged into one call. The
breaker decides from read times whether to ask the store and how long to wait. While the store does not
answer, it is only probed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.storage.stores.store import Store

_log = logging.getLogger(__name__)

OPENS_AFTER = 3
"""Number of consecutive late or failed reads after which lookups no longer wait for the store."""

_REMEMBERED = 512
_LOOKED_AT_EVERY = 32
_TOO_FEW = 20
_RANK = 0.99
_PATIENCE = 1.5
_LEAST_SECONDS = 0.001


class Breaker:
    """A circuit breaker: opens when a store is slow, down or faulty; its owner closes it when it answers.

    A read is late if it takes longer than 1.5 times the 99th percentile of recent reads. Lookups therefore
    notice an outage within a few reads, and wait no longer than that for each.
    """

    def __init__(self, longest_seconds: float) -> None:
        """Start closed.

        Args:
            longest_seconds: Maximum patience, used until enough reads were timed.
        """
        self._longest = longest_seconds
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads = 0
        self._troubles = 0
        self.patience_seconds = longest_seconds
        self.is_open = False

    def answered(self, seconds: float) -> None:
        """Record that a read was answered.

        Args:
            seconds: Its duration.
        """
        self._times.append(seconds)
        self._reads += 1
        if seconds <= self.patience_seconds:
            self._troubles = 0
        if len(self._times) >= _TOO_FEW and self._reads % _LOOKED_AT_EVERY == 0:
            ordered = sorted(self._times)
            usual = ordered[int(_RANK * (len(ordered) - 1))]
            self.patience_seconds = min(self._longest, max(_LEAST_SECONDS, _PATIENCE * usual))

    def troubled(self) -> None:
        """Record that a read failed, or that a caller stopped waiting for it."""
        self._troubles += 1
        if self._troubles >= OPENS_AFTER:
            self.is_open = True

    def close(self) -> None:
        """Close the breaker, after the store has answered a probe."""
        self._troubles = 0
        self.is_open = False


_THREADS = 4
_MOST_KEYS_A_CALL = 2000
_MOST_KEYS_WAITING = 200_000
_PROBE_SECONDS = 0.5
_PROBE = "probe"

Values = list[bytes]
Arrived = Callable[[Sequence[int], Values], None]


class Place(NamedTuple):
    """Where the value of a key will be.

    Attributes:
        read: The read that fetches it.
        at: Its index in the values of that read.
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
        breaker: Circuit breaker of the store.
    """

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        """Start the threads.

        Args:
            store: The store.
            timeout_seconds: Timeout of a call to the store.
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
        """Start reading keys.

        Args:
            partition: Store partition.
            missing: Value for a missing key.
            keys: The keys.
            arrived: Called in another thread when the read ends, with the indices of the keys that no one
                else was reading and with their values; not called if the store fails.

        Returns:
            Place of each value; empty if the store is not asked now.
        """
        if self.breaker.is_open:
            return []
        with self._changed:
            # Checked before the keys are added: max_keys limits by how much one lookup can exceed it.
            if len(self._flying) > _MOST_KEYS_WAITING:
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
        """Report reads that a caller gave up waiting for; each unfinished one counts as one failure."""
        with self._changed:
            late = {read for read in waits if not read.done()} - self._late
            self._late |= late
        for _ in late:
            self.breaker.troubled()

    def close(self) -> None:
        """End the threads, and cancel pending reads."""
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
                reads = self._take_batch()
            if reads:
                self._read(reads)

    def _take_batch(self) -> list[_Read]:
        """Take the reads for one call: the oldest one, and those after it in the same partition."""
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
                raise HeadraceError(f"the store returned {len(values)} values for {len(keys)} keys")
            self.breaker.answered(time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - a store may be third-party code; lookups must go on
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
        """Probe the store while the breaker is open; log when that begins and ends."""
        while not self._closed.wait(_PROBE_SECONDS):
            if not self.breaker.is_open:
                continue
            _log.warning("the store does not answer; lookups return the out-of-vocabulary vector")
            started = time.monotonic()
            while not self._answers():
                if self._closed.wait(_PROBE_SECONDS):
                    return
            self.breaker.close()
            _log.warning("the store answers again", extra={"seconds": round(time.monotonic() - started, 1)})

    def _answers(self) -> bool:
        try:
            self._store.read(_PROBE)
        except Exception:  # noqa: BLE001 - as in _read
            return False
        return True


def _tell(done: Future[Values], places: Sequence[int], arrived: Arrived) -> None:
    if not done.cancelled() and done.exception() is None:
        try:
            arrived(places, done.result())
        except Exception:  # noqa: BLE001 - log it here; callers get the values anyway
            _log.exception("values returned by the store could not be processed")
