"""An archive whose store is stopped, frozen and started again under load: lookups go on, and never fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.operations.open_archive import open_archive
from headrace.base.errors import Unavailable
from tests.faults.archive_outages import (
    KEYS,
    OUTAGES,
    TIMEOUT_SECONDS,
    VECTORS,
    check_outage,
    works,
)
from tests.services import Start
from tests.waiting import until
from tools.services.redis_server import Redis


@pytest.fixture
def server(own_redis: Start[Redis]) -> Redis:
    return own_redis()


@contextmanager
def opened(server: Redis, folder: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[Archive]:
    table = {
        "store": {"kind": "redis", "address": server.address, "timeout_seconds": timeout_seconds},
        "queue": {"kind": "memory"},
        "cache": {"size_bytes": 2**16, "absent_seconds": 0.0},
        "spaces": {"films": {"dimension": 3}},
    }
    with open_archive(archive_config(table, "archive.toml", folder), folder) as archive:
        yield archive


@pytest.mark.rest
@pytest.mark.parametrize("outage", OUTAGES)
def test_a_store_that_goes_and_comes(server: Redis, tmp_path: Path, outage: str) -> None:
    with opened(server, tmp_path) as archive:
        check_outage(archive, server, outage, times=2)


def test_no_lookup_waits_for_the_stores_own_timeout(server: Redis, tmp_path: Path) -> None:
    """One call of the store may take longer than the whole test waits."""
    with opened(server, tmp_path, 60.0) as archive:
        check_outage(archive, server, "frozen", times=1)


def test_a_store_that_is_not_there_at_the_start(server: Redis, tmp_path: Path) -> None:
    server.stop()
    with opened(server, tmp_path) as archive:
        for _ in range(3):
            vectors, found = archive.lookup("films", KEYS)
            assert vectors.shape == (20, 3)
            assert not found.any()
        for call in (
            partial(archive.lookup, "films", KEYS, version=1),
            partial(archive.put, "films", KEYS, VECTORS),
        ):
            with pytest.raises(Unavailable, match="has not answered since the start"):
                call()
        server.start()
        until(lambda: works(lambda: archive.put("films", KEYS, VECTORS)))
        until(lambda: bool(archive.lookup("films", KEYS).found.all()))


def test_put_says_that_the_store_is_down(server: Redis, tmp_path: Path) -> None:
    with opened(server, tmp_path) as archive:
        server.stop()
        with pytest.raises(Unavailable):
            archive.put("films", KEYS, VECTORS)
        server.start()
        until(lambda: works(lambda: archive.put("films", KEYS, VECTORS)))
        until(lambda: bool(archive.lookup("films", KEYS).found.all()))


def test_concurrent_misses_of_one_key_are_one_read(server: Redis, tmp_path: Path) -> None:
    """The store is frozen while a thousand lookups ask for one key; what it is asked for then is counted."""
    with opened(server, tmp_path, 60.0) as archive:
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
