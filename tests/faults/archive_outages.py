"""Store outages under an archive's lookups: no lookup fails or waits for the store.

Nothing here is measured in seconds: `python -m benchmarks archive_outage` tells how long lookups take over an
outage. What is held here does not depend on the machine: the archive's own counter of late lookups grows,
the breaker opens, and hardly a read is sent to a store that does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.background_reads import OPENS_AFTER
from headrace.base.errors import Unavailable
from tests.waiting import until
from tools.services.service import Service

KEYS = [f"film {number}" for number in range(20)]
VECTORS = np.arange(60, dtype=np.float32).reshape(20, 3)
TIMEOUT_SECONDS = 3.0
"""Timeout of one call of the store."""

OUTAGES: dict[str, tuple[Callable[[Service], object], Callable[[Service], object]]] = {
    "frozen": (Service.freeze, Service.thaw),
    "killed": (Service.kill, Service.start),
    "stopped": (Service.stop, Service.start),
}
LOOKERS = 3
_AT_ONCE = 10
# The breaker opens after OPENS_AFTER reads. Each looker may have one read on its way by then, and an answer
# that was sent before the outage may begin the count anew.
_MOST_READS = 2 * (OPENS_AFTER + LOOKERS)


class Lookups:
    """Looks keys up in a loop, different keys each time, bypassing the cache.

    Attributes:
        failures: Lookups that raised or returned a wrong vector.
        found: Lookups that returned all vectors.
        missing: Lookups that returned none.
        reads: Calls sent to the store.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.failures: list[Exception] = []
        self.found = self.missing = self.reads = 0
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._get_many = archive.store.get_many
        archive.store.get_many = self._counted  # type: ignore[method-assign]

    def _counted(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        with self._lock:
            self.reads += 1
        return self._get_many(partition, keys, missing)

    def put_back(self) -> None:
        """Count the store's calls no longer."""
        self._archive.store.get_many = self._get_many  # type: ignore[method-assign]

    def run(self, first: int) -> None:
        reader = self._archive.reader("films")
        while not self.done.wait(0.005):  # few enough that the machine has time for the store
            reader.forget_all()
            first = (first + 1) % (len(KEYS) - _AT_ONCE)  # a key more, so that this is a read of its own
            some = slice(first, first + _AT_ONCE)
            try:
                vectors, found = self._archive.lookup("films", KEYS[some], timeout_seconds=60.0)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                self.failures.append(error)
                return
            right = np.where(found[:, None], VECTORS[some], 0)
            if not np.array_equal(vectors, right):
                self.failures.append(AssertionError("an answer is not its key's"))
            with self._lock:
                self.found += int(found.all())
                self.missing += int(not found.any())


@contextmanager
def looking(archive: Archive) -> Iterator[Lookups]:
    lookups = Lookups(archive)
    threads = [threading.Thread(target=lookups.run, args=(5 * one,)) for one in range(LOOKERS)]
    for thread in threads:
        thread.start()
    try:
        yield lookups
    finally:
        lookups.done.set()
        for thread in threads:
            thread.join()
        lookups.put_back()
    assert not lookups.failures


def check_outage(archive: Archive, server: Service, outage: str, times: int) -> None:
    """Take the store away and bring it back during lookups; none may fail or wait for it."""
    begin, end = OUTAGES[outage]
    stored(archive)
    assert archive._reads is not None
    breaker, counts = archive._reads.breaker, archive.counts["films"]
    with looking(archive) as lookups:
        until(lambda: lookups.found > 300)  # how long reads take is known by now
        for _ in range(times):  # a second outage is met as the first one was
            begin(server)
            reads, late, missing = lookups.reads, counts.late, lookups.missing
            until(lambda: breaker.is_open)
            until(lambda late=late: counts.late > late + 200)
            until(lambda missing=missing: lookups.missing > missing + 200)
            assert breaker.is_open, "the store answers although it is away"
            assert lookups.reads - reads <= _MOST_READS
            end(server)
            if outage != "frozen":  # Redis keeps nothing over a kill here
                stored(archive)
            found = lookups.found
            until(lambda found=found: lookups.found > found + 100)


def stored(archive: Archive) -> None:
    """Write the vectors, retrying until the store answers."""
    until(lambda: works(lambda: archive.put("films", KEYS, VECTORS)))


def works(call: Callable[[], object]) -> bool:
    """Return False if the call raises Unavailable."""
    try:
        call()
    except Unavailable:
        return False
    return True
