"""Ten thousand connections are open and silent: they cost little, and a neighbour is answered as before."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faults.neighbours import Connection, percentile, waits
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, predict_request
from tests.faults.worker_processes import scrape
from tests.running_server import RunningServer

SPARE = 256
MOST_BYTES_A_CONNECTION = 48 * 1024
MOST_OF_OTHERS = 3_000
SERVERS = {"h2corn": (), "uvicorn": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


@pytest.fixture
def many(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many as are wanted, or as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(request.config.getoption("--idle-connections"), hard - SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.rest
@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_they_leave_their_neighbours_alone(models: Path, many: int, options: tuple[str, ...]) -> None:
    bytes_of_each(models, many, options)


@pytest.mark.timing
@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_they_cost_little(models: Path, many: int, options: tuple[str, ...]) -> None:
    assert bytes_of_each(models, many, options) < MOST_BYTES_A_CONNECTION


def bytes_of_each(models: Path, many: int, options: tuple[str, ...]) -> float:
    """Open connections, each of which asks once, as callers that keep a pool do; the memory of each."""
    request = predict_request(MODEL, [1.0])
    many = min(many, MOST_OF_OTHERS) if options else many
    with RunningServer(models, *options) as server:
        descriptors = scrape(server)["process_open_fds"]
        alone, before = percentile(waits(server.http_port, 0.5), 0.99), server.rss_bytes()
        with ExitStack() as opened:
            for _ in range(many):
                connection = opened.enter_context(connect(server.http_port))
                connection.sendall(request)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            each = (server.rss_bytes() - before) / many
            beside = percentile(waits(server.http_port, 0.5), 0.99)
            assert scrape(server)["process_open_fds"] >= many
            print(
                f"{many} idle connections: {each / 1024:.1f} KB each; a neighbour's p99 "
                f"{1000 * beside:.1f} ms, alone {1000 * alone:.1f} ms"
            )
            with closing(Connection(server.http_port)) as neighbour:
                assert [neighbour.send(request) for _ in range(100)] == [200] * 100
            does_it_still_serve(server)
        server.wait_for(
            lambda: scrape(server)["process_open_fds"] < descriptors + SPARE, "their descriptors to be free"
        )
        does_it_still_serve(server)
        assert server.stop() == 0
        return each
