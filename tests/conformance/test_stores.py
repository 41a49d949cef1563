"""The suite of the Store, on each of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.opener import Opener
from headrace.testing.stores import StoreSuite
from tools.services.cassandra_server import Cassandra
from tools.services.redis_server import Redis


def opener_of(**table: object) -> Opener:
    return Opener("headrace.testing.stores:open_from_settings", {"table": table})


class TestMemory(StoreSuite):
    is_shared = False

    @pytest.fixture
    def opener(self) -> Opener:
        return opener_of(kind="memory")


class TestLmdb(StoreSuite):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return opener_of(kind="lmdb", path=str(tmp_path / "archive"))


class TestRedis(StoreSuite):
    @pytest.fixture
    def opener(self, redis_server: Redis) -> Opener:
        return opener_of(kind="redis", address=redis_server.address, timeout_seconds=30.0)


class TestCassandra(StoreSuite):
    @pytest.fixture
    def opener(self, cassandra_server: Cassandra) -> Opener:
        return opener_of(kind="cassandra", contact_points=[cassandra_server.address], timeout_seconds=60.0)
