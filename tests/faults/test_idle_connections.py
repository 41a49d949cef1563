"""A caller keeps a connection for longer than it has requests: it is still there when the next one comes."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.still_serves import connect, does_it_still_serve, predict_request
from tests.running_server import RunningServer

QUIET_SECONDS = 12.0
"""Longer than h2corn (10 s) and uvicorn (5 s) keep connections of themselves."""

SERVERS = {"h2corn": (), "uvicorn": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


def answer(connection: socket.socket) -> bytes:
    connection.settimeout(30)
    connection.sendall(predict_request("good", [1.0]))
    said = b""
    while not said.endswith(b"}") and (more := connection.recv(65536)):
        said += more
    return said


@pytest.mark.rest
def test_kept_connections_outlive_a_pause(models: Path) -> None:
    """One pause for both servers."""
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(RunningServer(models, *options)) for name, options in SERVERS.items()
        }
        connections = {
            name: stack.enter_context(connect(server.http_port)) for name, server in servers.items()
        }
        for name, connection in connections.items():
            assert b"2.0" in answer(connection), name
        time.sleep(QUIET_SECONDS)
        for name, connection in connections.items():
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):  # and not the end of the stream
                connection.recv(1)
            assert b"2.0" in answer(connection), name
            does_it_still_serve(servers[name])
