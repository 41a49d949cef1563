"""SIGTERM in the middle of a load: whoever keeps to what he is told loses no request.

The whole proof, ten runs of 100,000 requests for each way to ask, takes half an hour or more::

    python -m pytest tests/faults/test_drain_loses_nothing.py -s --drain-requests 100000 --drain-runs 10
"""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, connect, predict_request
from tests.faults.strict_callers import Callers, grpc_unary, http1, http2
from tests.running_server import RunningServer

LEAD_SECONDS = 3.0
"""Longer than any caller here rests between two requests: each learns in that time that the server goes."""

LEAD = ("--drain-lead-seconds", str(LEAD_SECONDS))
LONG = ("--drain-lead-seconds", "300", "--drain-seconds", "600")
CALLERS = 32

WAYS = {
    "REST over HTTP/1.1": (http1, ()),
    "REST over HTTP/2": (http2, ()),
    "gRPC": (grpc_unary, ()),
    "REST over HTTP/1.1, two workers": (http1, ("--workers", "2")),
    "REST over HTTP/2, two workers": (http2, ("--workers", "2")),
    "gRPC, two workers": (grpc_unary, ("--workers", "2")),
    "REST over HTTP/1.1 by uvicorn, two workers": (http1, ("--workers", "2", "--http-server", "uvicorn")),
    "REST over HTTP/1.1 by uvicorn": (http1, ("--http-server", "uvicorn")),
    "gRPC by grpcio": (grpc_unary, ("--grpc-server", "grpcio")),
}


@pytest.mark.rest
@pytest.mark.exact
@pytest.mark.parametrize("way", WAYS)
def test_no_request_is_lost_when_the_server_is_told_to_stop(
    models: Path, way: str, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    caller, options = WAYS[way]
    requests, runs = pytestconfig.getoption("--drain-requests"), pytestconfig.getoption("--drain-runs")
    for run in range(runs):
        with RunningServer(models, *LEAD, *options) as server, Callers(caller, server, CALLERS) as tally:
            server.wait_for(lambda tally=tally: tally.answered >= requests, "the load")
            before = tally.answered
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert server.wait_until_ended() == 0
            seconds = time.monotonic() - began
        with capsys.disabled():
            print(f"\n[{way}, run {run + 1}: {tally}; ended in {seconds:.2f} s] ", end="")
        assert tally.lost == []
        assert tally.answered > before, "the server went on to answer while it drained"
        if caller is not grpc_unary:  # which does not show what it was told
            assert tally.told >= CALLERS


@pytest.mark.rest
@pytest.mark.exact
def test_a_caller_that_pauses_between_its_requests_is_not_cut_off(models: Path) -> None:
    pause = LEAD_SECONDS / 5
    with RunningServer(models, *LEAD) as server, Callers(http1, server, CALLERS, pause) as tally:
        server.wait_for(lambda: tally.answered >= 3 * CALLERS, "the load")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_until_ended() == 0
    assert tally.lost == []
    assert tally.told >= CALLERS


def test_every_answer_says_from_the_signal_on_that_its_connection_ends(models: Path) -> None:
    with RunningServer(models, *LONG) as server:
        with connect(server.http_port) as kept:
            assert b"connection: close" not in _ask(kept)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: any("draining" in line for line in server.errors), "draining to begin")
            assert b"connection: close" in _ask(kept)
            assert kept.recv(1) == b"", "it was kept open after that"
            with connect(server.http_port) as late:
                assert b"connection: close" in _ask(late)
            status, body = server.get("/v2/health/ready")
            assert (status, b'"ready":false' in body) == (503, True)
        server.kill()


@pytest.mark.rest
def test_a_connection_that_never_sends_is_let_go_at_the_end(models: Path) -> None:
    with RunningServer(models, *LEAD) as server:
        with connect(server.http_port) as silent:
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert silent.recv(1) == b""
            assert time.monotonic() - began > 0.9 * LEAD_SECONDS
        assert server.wait_until_ended() == 0


def test_at_a_terminal_nobody_waits_for_callers(models: Path) -> None:
    with RunningServer(models, *LONG) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.wait_until_ended() == 0


def _ask(connection: socket.socket) -> bytes:
    """One request; the answer's head and body."""
    connection.sendall(predict_request(MODEL, [1.0]))
    answer = b""
    while b"predictions" not in answer:
        piece = connection.recv(65536)
        assert piece, "closed without an answer"
        answer += piece
    return answer.lower()
