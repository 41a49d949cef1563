"""Callers send the head of a request byte by byte, without an end (Slowloris): others are answered."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faults.neighbours import Connection
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, predict_request
from tests.running_server import RunningServer

CONNECTIONS = 300
BYTES = 40
MOST_BYTES_A_CONNECTION = 64 * 1024
HEAD = b"POST /v1/models/good:predict HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: b\r\n" * 40
SERVERS = {"h2corn": (), "uvicorn": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


def is_open(connection: socket.socket) -> bool:
    """Whether the server has neither closed it nor said anything."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(30)


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_others_are_answered(models: Path, options: tuple[str, ...]) -> None:
    growth_of_slow_heads(models, options)


@pytest.mark.timing
@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_each_costs_little_memory(models: Path, options: tuple[str, ...]) -> None:
    assert growth_of_slow_heads(models, options) < CONNECTIONS * MOST_BYTES_A_CONNECTION


def growth_of_slow_heads(models: Path, options: tuple[str, ...]) -> int:
    """Send many heads byte by byte, and ask beside them; by how many bytes the server has grown."""
    with RunningServer(models, *options) as server, ExitStack() as opened:
        before = server.rss_bytes()
        slow = [opened.enter_context(connect(server.http_port)) for _ in range(CONNECTIONS)]
        with closing(Connection(server.http_port)) as neighbour:
            for at in range(BYTES):
                for one in slow:
                    one.sendall(HEAD[at : at + 1])
                assert neighbour.send(predict_request(MODEL, [1.0])) == 200
        growth = server.rss_bytes() - before
        for one in slow[:3]:  # who goes on is a caller like others
            one.sendall(HEAD[BYTES:] + b"content-length: 20\r\n\r\n" + b'{"instances": [1.0]}')
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
        does_it_still_serve(server)
        assert server.stop() == 0
        return growth


def test_the_greatest_age_of_connections_ends_them(models: Path) -> None:
    """Without it they stay as long as a byte comes every two minutes, as an idle connection may."""
    with RunningServer(models, "--max-connection-age-seconds", "2", "--drain-seconds", "3") as server:
        with ExitStack() as opened:
            slow = [opened.enter_context(connect(server.http_port)) for _ in range(20)]
            until, at = time.monotonic() + 60, 0
            while slow:
                assert time.monotonic() < until, f"{len(slow)} are still there"
                for one in list(slow):
                    try:
                        one.sendall(HEAD[at % len(HEAD) : at % len(HEAD) + 1])
                        if is_open(one):
                            continue
                    except OSError:
                        pass  # reset: closed, too
                    slow.remove(one)
                at += 1
                time.sleep(0.05)
        does_it_still_serve(server)
