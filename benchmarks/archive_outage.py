"""Lookups while the store goes away and comes back: p99 over the whole outage, beside p99 before it.

Redis and Cassandra, frozen (SIGSTOP) and killed. Lookups of 20 keys come at a steady rate, whether or not
those before have ended; times are from when each was due. Hardly a key is in memory: each lookup asks the
store. Every vector that was found is its key's.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.rounds import Effort, middle, print_lines, spread, verdict
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.operations.open_archive import open_archive
from headrace.base.errors import Unavailable
from headrace.base.tensors import Array
from tools.services.cassandra_server import Cassandra
from tools.services.catalogue import running
from tools.services.redis_server import Redis
from tools.services.service import Service

KEYS = 20_000
KEYS_A_LOOKUP = 20
DIMENSION = 16
RATE = 200.0
THREADS = 16
LIMIT = 2.0
WARM_SECONDS = 3.0
BACK_SECONDS = 60.0
SETTLED = 1.5
OUTAGES: dict[str, tuple[Callable[[Service], object], Callable[[Service], object]]] = {
    "frozen": (Service.freeze, Service.thaw),
    "killed": (Service.kill, Service.start),
}


class Lookups:
    """Lookups that come at a steady rate.

    Attributes:
        spent: When each was due, on the monotonic clock, how long after that it was answered, in seconds, and
            which share of its keys was found.
        wrong: How many vectors were not their key's.
    """

    def __init__(self, archive: Archive, vectors: Array) -> None:
        """Begin."""
        self._archive, self._vectors = archive, vectors
        self.spent: list[tuple[float, float, float]] = []
        self.wrong = 0
        self._numbers = itertools.count()
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._go, daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def during(self, since: float, until: float) -> Array:
        """How long those took that were due in a span, in milliseconds."""
        return np.array([took for due, took, _ in list(self.spent) if since <= due < until]) * 1e3

    def found(self, since: float, until: float) -> float:
        """The share of keys that were found by those that were due in a span."""
        return float(np.mean([share for due, _, share in list(self.spent) if since <= due < until]))

    def end(self) -> None:
        """Stop."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _go(self) -> None:
        random = np.random.default_rng(threading.get_ident())
        while not self._is_over.is_set():
            due = self._began + next(self._numbers) / RATE
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            which = random.integers(0, KEYS, KEYS_A_LOOKUP)
            vectors, found = self._archive.lookup("items", [f"item {one}" for one in which.tolist()])
            self.spent.append((due, time.monotonic() - due, float(found.mean())))
            self.wrong += int(np.count_nonzero(vectors[found] != self._vectors[which[found]]))


def run(effort: Effort) -> None:
    """Have each store go and come back in turns.

    Args:
        effort: How much measuring is done.
    """
    for kind in (Redis, Cassandra):
        with tempfile.TemporaryDirectory() as folder, running(kind) as server:
            ratios = measure(server, Path(folder), effort)
        for outage, found in ratios.items():
            told = f"{server.title} {outage}: p99 of lookups over the outage ≤ {LIMIT:g} × that before"
            verdict(told, middle(found) <= LIMIT, spread(found))


def measure(server: Service, folder: Path, effort: Effort) -> dict[str, list[float]]:
    """The ratios of one store, by outage."""
    ratios: dict[str, list[float]] = {outage: [] for outage in OUTAGES}
    titles = ("p99 before", "p50 before", "found before", "p99 over it", "its first second", "longest")
    lines = [("outage", *titles)]
    with opened(server, folder) as (archive, lookups):
        time.sleep(WARM_SECONDS)
        usual = await_settled(lookups, effort.seconds, float("inf"))
        for _, outage in itertools.product(range(effort.rounds), OUTAGES):
            begin, end = OUTAGES[outage]
            usual = min(usual, await_settled(lookups, effort.seconds, usual))
            gone = time.monotonic()
            begin(server)
            time.sleep(effort.seconds)
            back = time.monotonic()
            end(server)
            answers = await_answers(archive)
            before, over = lookups.during(gone - effort.seconds, gone), lookups.during(gone, answers)
            ratios[outage].append(p99(over) / p99(before))
            first = lookups.during(gone, min(back, gone + 1))
            figures = [f"{one:.2f} ms" for one in (p99(before), float(np.median(before)))]
            figures.append(f"{lookups.found(gone - effort.seconds, gone):.0%}")
            figures += [f"{one:.2f} ms" for one in (p99(over), p99(first), float(over.max()))]
            lines.append((outage, *figures))
        if lookups.wrong:
            raise RuntimeError(f"{lookups.wrong} numbers were not their key's")
    print(f"{server.title}, {RATE:g} lookups/s of {KEYS_A_LOOKUP} keys")
    print_lines(lines)
    return ratios


def await_settled(lookups: Lookups, seconds: float, usual: float) -> float:
    """Wait until a store that has been away answers as it did before: a new node is slow for a while.

    Returns:
        The p99 of the last so many seconds, in milliseconds.
    """
    until = time.monotonic() + BACK_SECONDS
    while True:
        time.sleep(seconds)
        now = time.monotonic()
        found = p99(lookups.during(now - seconds, now))
        if found <= SETTLED * usual:
            return found
        if now > until:
            raise RuntimeError(f"p99 is {found:.1f} ms, and was {usual:.1f} before the store was away")


def await_answers(archive: Archive) -> float:
    """Wait until lookups find everything again; when that was, on the monotonic clock."""
    until = time.monotonic() + BACK_SECONDS
    while time.monotonic() < until:
        if archive.lookup("items", ["item 1", "item 2"]).found.all():
            return time.monotonic()
        time.sleep(0.02)
    raise RuntimeError("the store has not come back")


@contextmanager
def opened(server: Service, folder: Path) -> Iterator[tuple[Archive, Lookups]]:
    """An archive that has everything in a store, and is asked."""
    if isinstance(server, Cassandra):
        store: dict[str, object] = {"kind": "cassandra", "contact_points": [server.address]}
    else:
        store = {"kind": "redis", "address": server.address}
    table = {
        "store": store,
        "queue": {"kind": "memory"},
        "cache": {"size_bytes": 2**16, "absent_seconds": 0.0},
        "spaces": {"items": {"dimension": DIMENSION}},
    }
    vectors = np.random.default_rng(3).standard_normal((KEYS, DIMENSION)).astype(np.float32)
    with open_archive(archive_config(table, "archive.toml", folder), folder) as archive:
        until = time.monotonic() + BACK_SECONDS
        while True:
            try:
                archive.put("items", [f"item {one}" for one in range(KEYS)], vectors)
                break
            except Unavailable:  # a node that has just started takes a second for its first calls
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        lookups = Lookups(archive, vectors)
        try:
            yield archive, lookups
        finally:
            lookups.end()


def p99(milliseconds: Array) -> float:
    """What 99 of 100 take at the most."""
    return float(np.percentile(milliseconds, 99))
