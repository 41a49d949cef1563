"""Real Redis, Cassandra and Kafka for tests: fixtures, and nothing starts before one is asked for.

``redis_server``, ``cassandra_server`` and ``kafka_server`` are shared by a whole session: a test keeps to
keys, keyspaces and topics of its own, and leaves the server running. ``own_redis()``, ``own_cassandra()`` and
``own_kafka()`` start one for the test alone, which it may kill, freeze and restart
(``tools.services.service``), with ``tls=True`` and ``password=True`` if it likes. All listen on ports that
were free, with data in temporary folders, and are gone at the end, however it comes.
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
        """Give a server that is ready."""


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """Redis, shared by the session."""
    with running(Redis) as server:
        yield server


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[Cassandra]:
    """Cassandra, shared by the session."""
    with running(Cassandra) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Kafka]:
    """Kafka, shared by the session."""
    with running(Kafka) as server:
        yield server


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
