"""Messages that are small to send and dear to decode: each has its status, and neighbours are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.faults.heavy import MANY, WORDS, heavy_messages
from tests.faults.still_serves import MODEL, does_it_still_serve, grpc_calls, infer
from tests.model_directories import write
from tests.running_server import RunningServer

MOST_WAIT_SECONDS = 1.0
"""A message that jams the door does so for seconds."""
MOST_GROWTH_BYTES = 200 * 2**20


@pytest.fixture
def server(models: Path) -> Iterator[RunningServer]:
    write(models, "words", 1, WORDS)
    write(models, "many", 1, MANY)
    with RunningServer(models, "--allow-code") as running:
        yield running


class Neighbour:
    """Asks the good model again and again, and keeps the longest wait."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest_seconds = 0.0

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)

    def _ask(self) -> None:
        with grpc_calls(self._server) as call:
            infer(call, MODEL, 1.0)
            while not self._ended.is_set():
                started = time.monotonic()
                assert infer(call, MODEL, 1.0) == [2.0]
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)


def _status(call: grpc.UnaryUnaryMultiCallable, message: bytes, compression: grpc.Compression) -> str:
    try:
        call(message, timeout=30, compression=compression)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def longest_wait(server: RunningServer, compression: grpc.Compression) -> float:
    """Send all of them beside a neighbour; how long it waited at most, in seconds."""
    longest = 0.0
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        for heavy in heavy_messages():
            with Neighbour(server) as neighbour:
                status = _status(channel.unary_unary(heavy.method), heavy.message, compression)
            assert status in heavy.expected, heavy.name
            longest = max(longest, neighbour.longest_seconds)
    does_it_still_serve(server)
    return longest


KINDS = pytest.mark.parametrize(
    "compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip], ids=["plain", "gzip"]
)


@pytest.mark.rest
@KINDS
def test_heavy_messages_get_their_answers_and_so_do_neighbours(
    server: RunningServer, compression: grpc.Compression
) -> None:
    longest_wait(server, compression)


@pytest.mark.timing
@KINDS
def test_heavy_messages_hold_up_nobody_and_take_little_memory(
    server: RunningServer, compression: grpc.Compression
) -> None:
    before = server.rss_bytes()
    assert longest_wait(server, compression) < MOST_WAIT_SECONDS
    assert server.rss_bytes() - before < MOST_GROWTH_BYTES
