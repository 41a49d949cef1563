"""A new server takes the ports of a running one: in the middle of a load, and where one of the two fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from headrace.frontends.wire import protos
from tests.faults.still_serves import MODEL, predict_request
from tests.faults.strict_callers import Callers, Tally, grpc_unary, http1, http2
from tests.faults.worker_processes import everywhere
from tests.running_server import RunningServer

CALLERS = 16
PAUSE_SECONDS = 0.01
REQUESTS = 5_000
LEAD = ("--drain-lead-seconds", "1")


def http1_new(server: RunningServer, tally: Tally, pause_seconds: float) -> None:
    """One request on each connection."""
    request = predict_request(MODEL, [1.0]).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    while not tally.ended.is_set():
        try:
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
                connection.sendall(request)
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
        except OSError as error:
            tally.count(lost=f"a new connection: {error!r}")
            continue
        good = answer.startswith(b"HTTP/1.1 200") and b"2.0" in answer
        tally.count(answered=good, lost="" if good else f"a new connection: {answer!r}")
        time.sleep(pause_seconds)


WAYS: dict[str, tuple[Callable[[RunningServer, Tally, float], None], tuple[int, ...]]] = {
    "REST, kept connections": (http1, (1, 1, 1)),
    "REST, a connection for each request": (http1_new, (1, 1)),
    "REST over HTTP/2": (http2, (1, 1)),
    "gRPC": (grpc_unary, (1, 1)),
    "REST, kept connections, workers": (http1, (1, 2, 2)),
    "REST, a connection for each request, workers": (http1_new, (2, 3)),
    "gRPC, workers": (grpc_unary, (2, 1)),
}
"""By name: how is asked, and how many workers the servers have that follow one another."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A path to hand over at."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory / "handover"


def waits(server: RunningServer, text: str) -> None:
    server.wait_for(lambda: server.count_in_log(text) > 0, text)


@pytest.mark.rest
@pytest.mark.exact
@pytest.mark.parametrize("way", WAYS)
def test_no_request_is_lost_when_one_server_follows_another(models: Path, place: Path, way: str) -> None:
    options = ("--handover", str(place), *LEAD, "--workers")
    caller, (workers, *followers) = WAYS[way]
    with ExitStack() as running:
        server = first = running.enter_context(RunningServer(models, *options, str(workers)))
        callers = Callers(caller, first, CALLERS, PAUSE_SECONDS)
        tally = running.enter_context(callers)
        for part, workers in enumerate(followers, 1):
            server.wait_for(lambda: tally.answered >= part * REQUESTS // 4, "the load")  # noqa: B023
            before, server = server, running.enter_context(RunningServer(models, *options, str(workers)))
            assert before.wait_until_ended() == 0
            assert (server.http_port, server.grpc_port) == (first.http_port, first.grpc_port)
        server.wait_for(lambda: tally.answered >= REQUESTS, "the load")
        callers.end()
    assert (tally.lost, tally.refused) == ([], 0)


@pytest.mark.rest
@pytest.mark.parametrize("workers", [1, 2])
def test_a_health_watch_ends_with_the_server_and_does_not_keep_it(
    models: Path, place: Path, workers: int
) -> None:
    """The watch is told of no trouble, and what it keeps open is over long before the drain time is."""
    options = ("--handover", str(place), *LEAD, "--drain-seconds", "300", "--workers", str(workers))
    asked = protos.message("grpc.health.v1.HealthCheckRequest")().SerializeToString()
    status = protos.message("grpc.health.v1.HealthCheckResponse").FromString
    with (
        RunningServer(models, *options) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        server.wait_for(lambda: everywhere(server, "/v2/health/ready") == {200}, "all workers to know it")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", response_deserializer=status)(asked)
        assert next(watch).status == 1
        with RunningServer(models, *options):
            assert server.wait_until_ended() == 0
            assert [one.status for one in watch] == []
            assert watch.code() is grpc.StatusCode.OK
