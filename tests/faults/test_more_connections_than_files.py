"""More connections come than the process may have files: some are turned away, and the server lives."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from tests.faults.still_serves import does_it_still_serve, predict_request
from tests.running_server import RunningServer

FILES = 128
CONNECTIONS = 300
PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


PORTS = ("REST", "gRPC")
MORE_THAN_POSSIBLE = "[limits]\nmax_connections = 5000\n"


@pytest.mark.parametrize(
    ("pair", "port", "settings"),
    [*[(pair, port, "") for pair in PAIRS for port in PORTS], ("h2corn", "REST", MORE_THAN_POSSIBLE)],
)
def test_the_server_outlives_more_connections_than_it_may_have_files(
    models: Path, tmp_path: Path, pair: str, port: str, settings: str
) -> None:
    (config := tmp_path / "server.toml").write_text(settings, "utf-8")
    few_files = ("prlimit", f"--nofile={FILES}:{FILES}")
    with RunningServer(models, "--config", str(config), *PAIRS[pair], prefix=few_files) as server:
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

        def serves() -> bool:
            with suppress(grpc.RpcError):
                does_it_still_serve(server)
                return True
            return False

        # One may be turned away while others are still taken from the system's queue, to be let go at once.
        server.wait_for(serves, "the connections to be let go")
        assert server.stop() == 0


@pytest.mark.rest
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is set as on Linux")
def test_a_server_that_can_accept_nothing_more_ends_and_says_why(models: Path) -> None:
    """It once lived on without its ports, and only a caller could have noticed."""
    with RunningServer(models) as server:
        pid = server.process.pid
        last = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (last + 1, last + 1))
        connections: list[socket.socket] = []
        with suppress(OSError):  # nobody is there any more
            for _ in range(last + 1):
                connections.append(socket.create_connection(("127.0.0.1", server.http_port), timeout=5))
        try:
            assert server.wait_until_ended() == 1
        finally:
            for connection in connections:
                connection.close()
        assert "no more requests can be accepted: Too many open files" in "".join(server.errors)


def test_a_server_that_may_have_too_few_files_says_so(models: Path) -> None:
    """It ended with one of several tracebacks, or with none and no connection."""
    command = ["prlimit", "--nofile=24:24", sys.executable, "-m", "headrace", "serve", str(models)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "headrace: the process may have 24 files open; expected at least 96, for ports, models and "
        "connections: raise its limit (ulimit -n)\n"
    )
