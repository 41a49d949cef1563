"""What callers have taken, counted in memory that all processes of a server share.

Counted are: when what a caller has taken is earned, of requests and of rows, and how many of its calls each
process is answering. There may be millions of callers, so these are count-min sketches (Cormode and
Muthukrishnan 2005): each caller is counted at two places that a digest of its name chooses, and the lesser
count holds. It is too high only where at both somebody else is counted, too; and who has asked for nothing
lately is not counted anywhere, so nothing needs to be forgotten. The digest has a secret of
this server, so that nobody can choose names that are counted with another's.

Nothing is locked. Two processes that take at the same moment may count one of the two: with a microsecond
between reading and writing, that is a thousandth at a thousand a second. What a process is answering is in
cells that it alone writes.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b

from headrace.access.caller import OF_TOKENS
from headrace.access.limits import CallerLimits, taken, wait
from headrace.errors import OverLimit

CELLS = 16_384
"""Among how many each of a caller's two places is chosen."""

_PLACES = 2
_KINDS = 2  # callers with keys and those with tokens: however many of these there are, it is nothing to those
_ALL = _KINDS * _PLACES * CELLS
_MOST_KNOWN = 65_536
_SECRET_BYTES = 16
_SHORTEST_BURST_SECONDS = 0.01

_Places = tuple[int, int]


def shared_memory(workers: int) -> int:
    """Make the memory for a server of some processes.

    Returns:
        Its descriptor, to be handed to them.
    """
    descriptor = os.memfd_create("headrace-callers", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _size(workers))
    os.pwrite(descriptor, secrets.token_bytes(_SECRET_BYTES), 0)
    return descriptor


def _size(workers: int) -> int:
    return _SECRET_BYTES + 8 * _ALL * (2 + workers)


class Meters:
    """The memory, as one process sees it. Serving thread only."""

    def __init__(
        self,
        descriptor: int = -1,
        worker: int = 0,
        workers: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at the memory; what a process before this one in its place was answering is forgotten.

        Args:
            descriptor: The memory that all processes share; -1 for some of this process alone.
            worker: This process's place among them, from 0.
            workers: How many they are.
            now: The clock of all of them.
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
        """Count a call that comes.

        Raises:
            OverLimit: The caller has had what it may have for now; nothing was counted.
        """
        places = self._places.get(caller) or self._find(caller)
        if limits.concurrent_requests:
            running = self._running(places)
            if running >= limits.concurrent_requests:
                raise OverLimit(
                    f"{caller!r} has {running} calls under way, and may have {limits.concurrent_requests}; "
                    "wait for one of them"
                )
        if limits.requests_per_second:
            seconds = self._wait(places, limits)
            if seconds:
                raise OverLimit(
                    f"{caller!r} has had its {limits.requests_per_second:g} requests a second; come back in "
                    f"{seconds:.2g} s",
                    retry_after_seconds=seconds,
                )
            self._take(places, 1, limits.requests_per_second)
        if limits.concurrent_requests:
            self._count(places, 1)

    def leave(self, caller: str, limits: CallerLimits) -> None:
        """Count a call that ends, and was let in."""
        if limits.concurrent_requests:
            self._count(self._places.get(caller) or self._find(caller), -1)

    def next_message(self, caller: str, limits: CallerLimits) -> float:
        """Count a message of a stream that was let in.

        Returns:
            How many seconds to wait before it is looked at: a stream is slowed down, not refused.
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
            OverLimit: The caller has had what it may have for now; nothing was counted.
        """
        if not limits.rows_per_second:
            return
        places = self._places.get(caller) or self._find(caller)
        seconds = self._wait(places, limits, _ALL)
        if seconds:
            raise OverLimit(
                f"{caller!r} has had its {limits.rows_per_second:g} rows a second; come back in "
                f"{seconds:.2g} s",
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
        """The places of a caller, the same in all processes."""
        digest = blake2b(caller.encode(), digest_size=8, key=self._secret).digest()
        one, other = memoryview(digest).cast("I")
        start = _PLACES * CELLS * caller.startswith(OF_TOKENS)
        places = start + one % CELLS, start + CELLS + other % CELLS
        if len(self._places) >= _MOST_KNOWN:
            self._places.clear()
        self._places[caller] = places
        return places
