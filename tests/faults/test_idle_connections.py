"""A caller keeps a connection for longer than it has requests: it is still there when the next one comes."""

from __future__ import annotations

import socket
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


@pytest.mark.slow
@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_a_kept_connection_outlives_a_pause(models: Path, options: tuple[str, ...]) -> None:
    with RunningServer(models, *options) as server, connect(server.http_port) as connection:
        assert b"2.0" in answer(connection)
        connection.settimeout(QUIET_SECONDS)
        with pytest.raises(TimeoutError):  # and not the end of the stream
            connection.recv(1)
        assert b"2.0" in answer(connection)
        does_it_still_serve(server)
