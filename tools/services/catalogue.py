"""The servers there are, and one of one's own for as long as a block lasts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tools.services.cassandra_server import Cassandra
from tools.services.errors import ServiceError
from tools.services.kafka_server import Kafka
from tools.services.ports import free_ports, is_free
from tools.services.redis_server import Redis
from tools.services.service import Service

KINDS: dict[str, type[Service]] = {kind.kind: kind for kind in (Redis, Cassandra, Kafka)}
TRIES = 3

Kind = TypeVar("Kind", bound=Service)


@contextmanager
def running(kind: type[Kind], *, tls: bool = False, password: bool = False) -> Iterator[Kind]:
    """Have a server on ports that were free, with its data in a temporary folder, for the length of a block.

    Args:
        kind: Which.
        tls: Whether its connections are encrypted.
        password: Whether it asks for one.

    Yields:
        The server, ready.

    Raises:
        ServiceError: It does not start.
    """
    with tempfile.TemporaryDirectory(prefix=f"headrace-{kind.kind}-") as scratch:
        for attempt in range(1, TRIES + 1):
            ports = free_ports(len(kind.well_known_ports))
            service = kind(Path(scratch) / str(attempt), ports, tls=tls, password=password)
            try:
                service.start()
                break
            except ServiceError:
                # Somebody else may have taken a port between the question and the start.
                if attempt == TRIES or all(is_free(port) for port in ports):
                    raise
        try:
            yield service
        finally:
            service.kill()
