"""Ten thousand good and bad requests over REST and gRPC: each gets its status, and the server lives."""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.faults.hostile import (
    CUTS_OF_GRPC,
    CUTS_OF_HTTP,
    Attack,
    grpc_attacks,
    grpc_attacks_of_many_kinds,
    gzip_bomb,
    http_attacks,
    http_attacks_of_many_kinds,
    write_models,
)
from tests.faults.still_serves import connect, does_it_still_serve
from tests.running_server import RunningServer

PAIRS = {
    "h2corn": (10_000, ()),
    "uvicorn and grpcio": (1_000, ("--http-server", "uvicorn", "--grpc-server", "grpcio")),
}
THREADS = 4
MOST_GROWTH_BYTES = 150 * 2**20


class Rest:
    """One client's connection, opened anew whenever the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def send(self, attack: Attack) -> int | None:
        """The status that was answered, or None if the connection was closed without one."""
        for _ in range(2):
            fresh = self._socket is None
            connection = self._socket = self._socket or connect(self._port)
            try:
                connection.sendall(attack.content)
                status = self._read(connection)
            except (ConnectionError, BrokenPipeError):
                status = self._leftover(connection)
            if status is None or None in attack.expected or attack.name == "announced too large":
                self.close()
            if status is not None or fresh:
                return status
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read(self, connection: socket.socket) -> int | None:
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.recv(65536)
            if not chunk:
                return None
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        missing = int(headers.get(b"content-length", b"0")) - len(body)
        while missing > 0:
            missing -= len(connection.recv(65536)) or missing
        if headers.get(b"connection") == b"close":
            self.close()
        return int(head.split(b" ", 2)[1])

    def _leftover(self, connection: socket.socket) -> int | None:
        """What was answered before the server closed the connection in the middle of our sending."""
        try:
            return self._read(connection)
        except ConnectionError:
            return None


class Grpc:
    """One client's connection, for calls of any method with messages as bytes."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)

    def send(self, attack: Attack) -> str:
        """The status that was answered."""
        try:
            self._channel.unary_unary(attack.method)(attack.content, timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def close(self) -> None:
        self._channel.close()


class Storm:
    """Several clients that send attacks in a random order until all requests are sent."""

    def __init__(self, server: RunningServer, requests: int) -> None:
        self._server = server
        self._numbers = itertools.count()
        self._requests = requests
        self.wrong: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def rage(self) -> None:
        threads = [threading.Thread(target=self._client, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(250)

    def _client(self, seed: int) -> None:
        chosen = random.Random(seed)
        http = [*http_attacks(), *http_attacks_of_many_kinds()]
        over_grpc = [*grpc_attacks(), *grpc_attacks_of_many_kinds()]
        rest, calls = Rest(self._server.http_port), Grpc(self._server.grpc_port)
        for _ in itertools.takewhile(lambda number: number < self._requests, self._numbers):
            kind = chosen.random()
            if kind < 0.5:
                self._send(chosen, http, rest.send)
            elif kind < 0.95:
                self._send(chosen, over_grpc, calls.send)
            elif kind < 0.975:
                chosen.choice(CUTS_OF_HTTP)(self._server.http_port)
                self.sent["cut"] += 1
            else:
                chosen.choice(CUTS_OF_GRPC)(self._server.grpc_port)
                self.sent["cut"] += 1
        rest.close()
        calls.close()

    def _send(self, chosen: random.Random, attacks: list[Attack], send: Callable[[Attack], object]) -> None:
        attack = chosen.choice(attacks)
        if chosen.random() * attack.every > 1:
            attack = attacks[0]
        status = send(attack)
        self.sent[attack.name] += 1
        if status not in attack.expected:
            self.wrong[f"{attack.name}: {status}, not {attack.expected}"] += 1


def growth(models: Path, requests: int, options: tuple[str, ...]) -> int:
    """Send each attack by itself, then all of them mixed; by how many bytes the latter made a server grow."""
    write_models(models)
    with RunningServer(models, "--allow-code", *options) as server:
        for attack in [
            *http_attacks(),
            *http_attacks_of_many_kinds(),
        ]:  # each by itself: a failure has a name
            rest = Rest(server.http_port)
            assert rest.send(attack) in attack.expected, attack.name
            rest.close()
            assert server.process.poll() is None, attack.name
        calls = Grpc(server.grpc_port)
        for attack in grpc_attacks_of_many_kinds():
            assert calls.send(attack) in attack.expected, attack.name
        calls.close()
        before = server.rss_bytes()
        storm = Storm(server, requests)
        storm.rage()
        assert storm.wrong == {}
        assert sum(storm.sent.values()) == requests
        does_it_still_serve(server)
        after = server.rss_bytes()
        assert not any("Traceback" in line for line in server.errors), server.errors[-40:]
        assert server.stop() == 0
    return after - before


ALL = pytest.mark.parametrize(("requests", "options"), PAIRS.values(), ids=PAIRS)


@pytest.mark.rest
@ALL
def test_thousands_of_mixed_requests_leave_the_server_serving(
    models: Path, requests: int, options: tuple[str, ...]
) -> None:
    growth(models, requests, options)


@pytest.mark.timing
@ALL
def test_thousands_of_mixed_requests_take_no_memory(
    models: Path, requests: int, options: tuple[str, ...]
) -> None:
    assert growth(models, requests, options) < MOST_GROWTH_BYTES


def growth_by_bombs(models: Path) -> int:
    bomb = gzip_bomb()
    with RunningServer(models) as server:
        before = server.rss_bytes()
        for _ in range(3):
            rest = Rest(server.http_port)
            assert rest.send(bomb) == 413
            rest.close()
        after = server.rss_bytes()
        does_it_still_serve(server)
    return after - before


def test_a_gzip_bomb_is_refused(models: Path) -> None:
    growth_by_bombs(models)


@pytest.mark.timing
def test_a_gzip_bomb_is_refused_in_little_memory(models: Path) -> None:
    assert growth_by_bombs(models) < MOST_GROWTH_BYTES
