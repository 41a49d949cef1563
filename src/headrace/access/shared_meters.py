"""Count what callers have taken, in memory that all processes of a server share.

For each caller, the memory holds the times at which its requests and its rows will have been earned (GCRA),
and the number of its calls in progress in each process. There may be millions of callers, so these are
count-min sketches (Cormode and Muthukrishnan 2005). Each caller is counted in two cells chosen by a digest of
its name, and the smaller count applies. It is too high only if other callers are counted in both cells. A
caller that has requested nothing lately has no count, so nothing needs to expire. The digest is keyed with a
secret of the server, so that nobody can choose names that share another's cells.

Nothing is locked. If two processes update a cell at the same moment, one update may be lost. Reading and
writing take about a microsecond, so at 1000 requests per second about one in 1000 is lost. The calls in
progress are in cells that only one process writes.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b

from headrace.access.caller import OF_TOKENS, CallerLimits, taken, wait
from headrace.base.errors import OverLimit

CELLS = 16_384
"""Number of cells among which each of a caller's two is chosen."""

_PLACES = 2
_KINDS = 2  # callers with keys and with tokens: many tokens cannot distort the counts of keys
_ALL = _KINDS * _PLACES * CELLS
_MOST_KNOWN = 65_536
_SECRET_BYTES = 16
_SHORTEST_BURST_SECONDS = 0.01

_Places = tuple[int, int]


def shared_memory(workers: int) -> int:
    """Create the memory for a server of several processes.

    Returns:
        Its descriptor, to be passed to the processes.
    """
    descriptor = os.memfd_create("headrace-callers", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _size(workers))
    os.pwrite(descriptor, secrets.token_bytes(_SECRET_BYTES), 0)
    return descriptor


def _size(workers: int) -> int:
    return _SECRET_BYTES + 8 * _ALL * (2 + workers)


class Meters:
    """The shared counts, as seen by one process. Serving thread only."""

    def __init__(
        self,
        descriptor: int = -1,
        worker: int = 0,
        workers: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Map the memory, and reset the calls in progress that an earlier process of this index has left.

        Args:
            descriptor: Descriptor of the shared memory; -1 for memory of this process alone.
            worker: Index of this process, from 0.
            workers: Number of processes.
            now: Clock that all processes share.
        """
        memory = memoryview(mmap.mmap(descriptor, _size(workers)))
        self._secret = secrets.token_bytes(_SECRET_BYTES) if descriptor < 0 else bytes(memory[:_SECRET_BYTES])
        self._cells = memory[_SECRET_BYTES:].cast("d")
        self._now = now
        self._places: dict[str, _Places] = {}
        self._mine = (2 + worker) * _ALL
        self._workers = range(2 * _ALL, (2 + workers) * _ALL, _ALL)
        self._cells[self._mine : self._mine + _ALL] = memoryview(bytes(8 * _ALL)).cast("d")

    def enter(self, caller: str, limits: CallerLimits) -> None:
        """Count a call that begins.

        Raises:
            OverLimit: The caller has reached a limit; nothing was counted.
        """
        places = self._places.get(caller) or self._find(caller)
        if limits.concurrent_requests:
            running = self._running(places)
            if running >= limits.concurrent_requests:
                raise OverLimit(
                    f"{caller!r} has {running} calls in progress; expected at most "
                    f"{limits.concurrent_requests}; retry when one of them has ended"
                )
        if limits.requests_per_second:
            seconds = self._wait(places, limits)
            if seconds:
                raise OverLimit(
                    f"{caller!r} has reached its limit of {limits.requests_per_second:g} requests per "
                    f"second; retry in {seconds:.2g} s",
                    retry_after_seconds=seconds,
                )
            self._take(places, 1, limits.requests_per_second)
        if limits.concurrent_requests:
            self._count(places, 1)

    def leave(self, caller: str, limits: CallerLimits) -> None:
        """Count the end of a call that was admitted."""
        if limits.concurrent_requests:
            self._count(self._places.get(caller) or self._find(caller), -1)

    def next_message(self, caller: str, limits: CallerLimits) -> float:
        """Count a message of a stream that was admitted.

        Returns:
            Seconds to wait before the message is handled: a stream is slowed down, not refused.
        """
        if not limits.requests_per_second:
            return 0.0
        places = self._places.get(caller) or self._find(caller)
        seconds = self._wait(places, limits)
        self._take(places, 1, limits.requests_per_second)
        return seconds

    def rows(self, caller: str, limits: CallerLimits, rows: int) -> None:
        """Count the rows of a prediction.

        Raises:
            OverLimit: The caller has reached the limit; nothing was counted.
        """
        if not limits.rows_per_second:
            return
        places = self._places.get(caller) or self._find(caller)
        seconds = self._wait(places, limits, _ALL)
        if seconds:
            raise OverLimit(
                f"{caller!r} has reached its limit of {limits.rows_per_second:g} rows per second; "
                f"retry in {seconds:.2g} s",
                retry_after_seconds=seconds,
            )
        self._take(places, rows, limits.rows_per_second, _ALL)

    def _wait(self, places: _Places, limits: CallerLimits, counter: int = 0) -> float:
        cells, (one, other) = self._cells, places
        due = min(cells[counter + one], cells[counter + other])
        return wait(due, self._now(), max(limits.burst_seconds, _SHORTEST_BURST_SECONDS))

    def _take(self, places: _Places, amount: int, rate: float, counter: int = 0) -> None:
        cells, now = self._cells, self._now()
        for place in places:
            cells[counter + place] = taken(cells[counter + place], now, amount, rate)

    def _running(self, places: _Places) -> int:
        cells, (one, other) = self._cells, places
        ones = others = 0.0
        for worker in self._workers:
            ones += cells[worker + one]
            others += cells[worker + other]
        return int(min(ones, others))

    def _count(self, places: _Places, calls: int) -> None:
        cells, mine, (one, other) = self._cells, self._mine, places
        cells[mine + one] += calls
        cells[mine + other] += calls

    def _find(self, caller: str) -> _Places:
        """Return the cells of a caller, the same in all processes."""
        digest = blake2b(caller.encode(), digest_size=8, key=self._secret).digest()
        one, other = memoryview(digest).cast("I")
        start = _PLACES * CELLS * caller.startswith(OF_TOKENS)
        places = start + one % CELLS, start + CELLS + other % CELLS
        if len(self._places) >= _MOST_KNOWN:
            self._places.clear()
        self._places[caller] = places
        return places
