"""More connections come than the process may have files: some are turned away, and the server lives."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve, predict_request
from tests.running_server import RunningServer

FILES = 128
CONNECTIONS = 300
PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


@pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("port", ["REST", "gRPC"])
def test_the_server_outlives_more_connections_than_it_may_have_files(
    models: Path, options: tuple[str, ...], port: str
) -> None:
    few_files = ("prlimit", f"--nofile={FILES}:{FILES}")
    with RunningServer(models, *options, prefix=few_files) as server:
        connections: list[socket.socket] = []
        try:
            for _ in range(CONNECTIONS):
                try:
                    target = server.http_port if port == "REST" else server.grpc_port
                    connections.append(socket.create_connection(("127.0.0.1", target), timeout=5))
                except OSError:
                    break  # turned away
            assert server.process.poll() is None
            for connection in connections:
                with suppress(OSError):  # as above
                    connection.sendall(predict_request("good", [1.0]))
        finally:
            for connection in connections:
                connection.close()
        server.wait_for(lambda: server.get("/v2/health/ready")[0] == 200, "the connections to be let go")
        does_it_still_serve(server)
        assert server.stop() == 0
