"""Redis, Cassandra and Kafka as tests and people start them: they answer, come back with their data, go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.service_clients import client_of
from tools.services.errors import ServiceError
from tools.services.ports import HOST, is_free
from tools.services.service import Service

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = ("redis", "cassandra", "kafka")


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_writes_survive_a_kill_and_a_restart(kind: str, request: pytest.FixtureRequest) -> None:
    server: Service = request.getfixturevalue(f"own_{kind}")()
    client = client_of(server)
    client.write(server, "before the kill")
    first, ports = server.pid, server.ports
    server.kill()
    assert not server.running
    assert is_free(server.port)
    server.start()
    assert (server.running, server.ports, server.pid != first) == (True, ports, True)
    assert client.read(server) == ["before the kill"]
    client.write(server, "before the stop")
    server.restart()
    assert client.read(server) == ["before the kill", "before the stop"]
    server.stop()
    assert not server.running


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_with_tls_and_a_password_only_who_has_both_comes_in(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Service = request.getfixturevalue(f"own_{kind}")(tls=True, password=True)
    client = client_of(server)
    client.write(server, "in secret")
    assert client.read(server) == ["in secret"]
    with pytest.raises(client.refusal):
        client.write(server, "nobody", password="wrong")
    secrets = [path for path in server.folder.rglob("*") if path.is_file() and holds(path, server.password)]
    assert secrets
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets), secrets


def holds(path: Path, secret: str | None) -> bool:
    """Say whether a file has a text in it."""
    return secret is not None and secret.encode() in path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_shares_one_server_of_each_kind(kind: str, request: pytest.FixtureRequest) -> None:
    server: Service = request.getfixturevalue(f"{kind}_server")
    assert server.answers()
    assert str(server.port) in server.how_to_connect()


def test_a_frozen_server_keeps_its_connections_and_says_nothing(own_redis: Any) -> None:
    server = own_redis()
    server.freeze()
    assert server.running
    with pytest.raises(TimeoutError):
        server.answers()
    server.thaw()
    server.wait_until_ready()
    server.freeze()
    server.stop()  # a frozen one, too
    assert not server.running


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command that people use, on a directory of the test's own."""
    return subprocess.run(
        [sys.executable, "-m", "tools.services", *words],
        cwd=ROOT,
        env={**os.environ, "HEADRACE_SERVICES": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_starts_shows_and_stops(tmp_path: Path) -> None:
    assert command(tmp_path, "status").returncode == 1
    try:
        started = command(tmp_path, "start", "redis", "--any-port", "--password")
        assert started.returncode == 0, started.stderr
        assert "running" in started.stdout
        assert str(tmp_path / "redis-password" / "password") in started.stdout
        again = command(tmp_path, "start", "redis", "--any-port", "--password")
        assert again.stdout == started.stdout  # the same process, not a second one
        other = command(tmp_path, "start", "redis", "--any-port")
        assert other.returncode == 1
        assert "stop it first" in other.stderr
        assert command(tmp_path, "status").stdout == started.stdout
        assert "Ready to accept connections" in command(tmp_path, "logs", "redis").stdout
    finally:
        stopped = command(tmp_path, "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped" in command(tmp_path, "status").stdout


def test_a_port_that_is_taken_is_told_with_who_has_it(own_redis: Any) -> None:
    server = own_redis()
    server.stop()
    with socket.create_server((HOST, server.port)):
        taken = rf"port {server.port} for Redis is taken \(process {os.getpid()}: "
        with pytest.raises(ServiceError, match=taken):
            server.start()
        assert not server.running


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    refused = command(tmp_path, "start", "postgres")
    assert refused.returncode == 2
    assert "there is no server postgres" in refused.stderr
    assert command(tmp_path, "logs", "kafka").returncode == 1
