"""Fixtures for real Redis, Cassandra and Kafka; only servers that collected tests use are started.

``redis_server``, ``cassandra_server`` and ``kafka_server`` are shared by a whole session: a test keeps to
keys, keyspaces and topics of its own, and leaves the server running. ``own_redis()``, ``own_cassandra()`` and
``own_kafka()`` start one for the test alone, which it may kill, freeze and restart
(``tools.services.service``), with ``tls=True`` and ``password=True`` if it likes. All listen on free
ports, keep data in temporary folders, and are removed at the end; after a crash the kernel kills them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol, TypeVar

import pytest

from tools.services.cassandra_server import Cassandra
from tools.services.catalogue import running
from tools.services.kafka_server import Kafka
from tools.services.redis_server import Redis
from tools.services.service import Service

Kind_co = TypeVar("Kind_co", bound=Service, covariant=True)


class Start(Protocol[Kind_co]):
    """Starts a server of the test's own."""

    def __call__(self, *, tls: bool = False, password: bool = False) -> Kind_co:
        """Return a running server."""


SHARED: dict[str, type[Service]] = {
    "redis_server": Redis,
    "cassandra_server": Cassandra,
    "kafka_server": Kafka,
}
STARTED = pytest.StashKey[ExitStack]()
SERVERS = pytest.StashKey[dict[str, Service]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED], config.stash[SERVERS] = ExitStack(), {}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the shared servers that the tests name, before the time limit of any test runs.

    Workers of pytest-xdist collect all tests but run only some: there, the first test that needs a server
    starts it.
    """
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    named = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name in SHARED.keys() & named:
        config.stash[SERVERS][name] = config.stash[STARTED].enter_context(running(SHARED[name]))


@pytest.hookimpl(tryfirst=True)  # before tests/lanes.py looks for what is left running
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[STARTED].close()


def _shared(name: str) -> Callable[[pytest.FixtureRequest], Iterator[Service]]:
    """Make a fixture of a server that all tests of the session share."""

    def fixture(request: pytest.FixtureRequest) -> Iterator[Service]:
        if found := request.config.stash[SERVERS].get(name):
            yield found
            return
        with running(SHARED[name]) as server:
            yield server

    return fixture


redis_server = pytest.fixture(_shared("redis_server"), scope="session", name="redis_server")
cassandra_server = pytest.fixture(_shared("cassandra_server"), scope="session", name="cassandra_server")
kafka_server = pytest.fixture(_shared("kafka_server"), scope="session", name="kafka_server")


def _factory(kind: type[Service]) -> Callable[[], Iterator[Start[Service]]]:
    """Make a fixture that starts servers of a kind, and ends them after the test."""

    def fixture() -> Iterator[Start[Service]]:
        with ExitStack() as started:

            def start(*, tls: bool = False, password: bool = False) -> Service:
                return started.enter_context(running(kind, tls=tls, password=password))

            yield start

    return fixture


own_redis = pytest.fixture(_factory(Redis), name="own_redis")
own_cassandra = pytest.fixture(_factory(Cassandra), name="own_cassandra")
own_kafka = pytest.fixture(_factory(Kafka), name="own_kafka")
