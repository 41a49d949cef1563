"""A port for Prometheus scrapes, for long-running commands that serve nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from headrace.base.addresses import bracketed
from headrace.base.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


def listen(collector: Collector, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Answer scrapes in background threads.

    Args:
        collector: Provides the metrics; the process's own are added.
        host: The address.
        port: The port; 0 for any free one.

    Returns:
        The port, and a function that closes it.

    Raises:
        ConfigError: The port cannot be opened.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics-port: cannot listen on {bracketed(host)}:{port}: {error}") from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), close


@contextmanager
def answering(collector: Collector, host: str, port: int, errors: TextIO) -> Iterator[None]:
    """Answer scrapes while the context is active, and announce the address.

    Args:
        collector: As for ``listen``.
        host: As for ``listen``.
        port: As for ``listen``.
        errors: The stream to which the address is written.

    Raises:
        ConfigError: The port cannot be opened.
    """
    port, close = listen(collector, host, port)
    try:
        errors.write(f"headrace: metrics at http://{bracketed(host)}:{port}/metrics\n")
        errors.flush()
        yield
    finally:
        close()
