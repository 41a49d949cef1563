"""An archive whose store is stopped, frozen and started again under load: lookups go on, and never fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.archive import Archive
from headrace.archive.config import archive_config
from headrace.archive.opening import open_archive
from headrace.errors import Unavailable
from tests.services import Start
from tools.services.redis_server import Redis
from tools.services.service import Service

KEYS = [f"film {number}" for number in range(20)]
VECTORS = np.arange(60, dtype=np.float32).reshape(20, 3)
TIMEOUT_SECONDS = 3.0


@pytest.fixture
def server(own_redis: Start[Redis]) -> Redis:
    return own_redis()


@contextmanager
def opened(server: Redis, folder: Path) -> Iterator[Archive]:
    table = {
        "store": {"kind": "redis", "address": server.address, "timeout_seconds": TIMEOUT_SECONDS},
        "queue": {"kind": "memory"},
        "cache": {"size_bytes": 2**16, "absent_seconds": 0.0},
        "spaces": {"films": {"dimension": 3}},
    }
    with open_archive(archive_config(table, "archive.toml", folder), folder) as archive:
        yield archive


class Lookups:
    """Somebody who looks the same keys up on and on, each time in the store."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.failures: list[Exception] = []
        self.found = self.missing = 0
        self.slowest = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        reader = self._archive.reader("films")
        while not self.done.wait(0.002):
            reader.forget_all()
            started = time.monotonic()
            try:
                vectors, found = self._archive.lookup("films", KEYS, timeout_seconds=60.0)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                self.failures.append(error)
                return
            self.slowest = max(self.slowest, time.monotonic() - started)
            right = np.where(found[:, None], VECTORS, 0)
            if not np.array_equal(vectors, right):
                self.failures.append(AssertionError("an answer is not its key's"))
            self.found += int(found.all())
            self.missing += int(not found.any())


@contextmanager
def looking(archive: Archive) -> Iterator[Lookups]:
    lookups = Lookups(archive)
    threads = [threading.Thread(target=lookups.run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield lookups
    finally:
        lookups.done.set()
        for thread in threads:
            thread.join()
    assert not lookups.failures


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        threading.Event().wait(0.01)


@pytest.mark.parametrize(
    "outage",
    [(Service.freeze, Service.thaw), (Service.kill, Service.start), (Service.stop, Service.start)],
    ids=["frozen", "killed", "stopped"],
)
def test_a_store_that_goes_and_comes(
    server: Redis, tmp_path: Path, outage: tuple[Callable[[Service], object], Callable[[Service], object]]
) -> None:
    begin, end = outage
    with opened(server, tmp_path) as archive:
        archive.put("films", KEYS, VECTORS)
        with looking(archive) as lookups:
            until(lambda: lookups.found > 500)  # how long reads take is known by now
            for _ in range(2):  # a second outage is met as the first one was
                begin(server)
                missing = lookups.missing
                until(lambda missing=missing: lookups.missing > missing + 200)
                end(server)
                archive_is_back(archive, outage)
                found = lookups.found
                until(lambda found=found: lookups.found > found + 100)
            assert lookups.slowest < TIMEOUT_SECONDS  # what the store itself would have taken
        assert archive.counts["films"].late > 0


def archive_is_back(archive: Archive, outage: tuple[object, object]) -> None:
    """Redis keeps nothing over a kill here: what it had is stored again, as soon as it answers."""

    def stored() -> bool:
        try:
            archive.put("films", KEYS, VECTORS)
        except Unavailable:
            return False
        return True

    if outage[0] is not Service.freeze:
        until(stored)


def test_put_says_that_the_store_is_down(server: Redis, tmp_path: Path) -> None:
    with opened(server, tmp_path) as archive:
        server.stop()
        with pytest.raises(Unavailable):
            archive.put("films", KEYS, VECTORS)
        server.start()
        until(lambda: works(lambda: archive.put("films", KEYS, VECTORS)))
        until(lambda: bool(archive.lookup("films", KEYS).found.all()))


def works(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unavailable:
        return False
    return True


def test_concurrent_misses_of_one_key_are_one_read(server: Redis, tmp_path: Path) -> None:
    """The store is frozen while a thousand lookups ask for one key; what it is asked for then is counted."""
    with opened(server, tmp_path) as archive:
        archive.put("films", KEYS, VECTORS)
        reader = archive.reader("films")
        reader.forget_all()
        server.freeze()
        lookups = [reader.begin(KEYS[:1]) for _ in range(1000)]
        assert len({id(wait) for lookup in lookups for wait in lookup.waits}) == 1
        server.thaw()
        until(lambda: all(wait.done() for lookup in lookups for wait in lookup.waits))
        for lookup in lookups:
            vectors, found = reader.end(lookup, 0.0)
            assert found.all()
            np.testing.assert_array_equal(vectors, VECTORS[:1])
