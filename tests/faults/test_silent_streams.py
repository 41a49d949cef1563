"""Many calls that are opened and never send anything keep nobody else out, and are ended in time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.faults.hostile import _frame, grpc_opening
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, grpc_calls, infer
from tests.running_server import RunningServer

STREAMS = 256
"""As many as a connection may have open at a time."""
CONNECTIONS = 24
SETTINGS = "[limits]\nmax_message_bytes = 1048576\nmax_inflight_bytes = 67108864\n"
UNARY, STREAM = "ModelInfer", "ModelStreamInfer"
INFER = "/inference.GRPCInferenceService/"


def opened(port: int, method: str, streams: int) -> socket.socket:
    """A connection with so many calls on it, of each of which only the headers are sent."""
    opening = grpc_opening()
    path = f"{INFER}{UNARY}".encode()
    start = opening.index(_frame(4, 0, 0, b"")) + len(_frame(4, 0, 0, b""))
    block = opening[start + 9 :]
    wanted = f"{INFER}{method}".encode()
    block = block.replace(bytes([len(path)]) + path, bytes([len(wanted)]) + wanted)
    connection = connect(port)
    connection.sendall(opening[:start] + b"".join(_frame(1, 4, 1 + 2 * at, block) for at in range(streams)))
    return connection


@contextmanager
def server_of(models: Path, directory: Path, settings: str) -> Iterator[RunningServer]:
    file = directory / "server.toml"
    file.write_text(settings, "utf-8")
    with RunningServer(models, "--config", str(file)) as server:
        yield server


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_calls_that_never_send_anything_keep_nobody_out(models: Path, tmp_path: Path, method: str) -> None:
    """6,144 of them, more than there is room for; they once held all of it, for as long as they liked."""
    with (
        server_of(models, tmp_path, SETTINGS) as server,
        ExitStack() as connections,
        grpc_calls(server) as call,
    ):
        for _ in range(CONNECTIONS):
            connections.enter_context(opened(server.grpc_port, method, STREAMS))
            assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
            assert infer(call, MODEL, 1.0) == [2.0]
        for _ in range(20):
            assert server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})[0] == 200
        does_it_still_serve(server)


def test_a_stream_without_a_first_message_is_ended(models: Path, tmp_path: Path) -> None:
    with server_of(models, tmp_path, "[limits]\nbody_timeout_seconds = 0.3\n") as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            for path in (
                f"{INFER}{STREAM}",
                "/grpc.health.v1.Health/Watch",
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            ):
                with _silence() as nothing, pytest.raises(grpc.RpcError) as caught:
                    list(channel.stream_stream(path)(nothing, timeout=30))
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED, path
                assert "0.3 s after the stream was opened" in caught.value.details()
        does_it_still_serve(server)


@contextmanager
def _silence() -> Iterator[Iterator[bytes]]:
    """Messages that do not come, and whose end does not either while this is entered."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        return
        yield b""

    try:
        yield nothing()
    finally:
        over.set()


def test_a_connection_has_no_more_streams_than_it_may(models: Path, tmp_path: Path) -> None:
    """The server says so in its settings, and refuses one more."""
    with server_of(models, tmp_path, "[limits]\nmax_streams_per_connection = 3\n") as server:
        with opened(server.grpc_port, STREAM, 4) as connection:
            kinds = _until(connection, refused := {3, 7})  # RST_STREAM or GOAWAY
            assert kinds & refused
        does_it_still_serve(server)


def _until(connection: socket.socket, wanted: set[int]) -> set[int]:
    """The kinds of frames that come, until one of those wanted has, or the connection ends."""
    came, kinds, deadline = b"", set[int](), time.monotonic() + 60
    while not kinds & wanted:
        assert time.monotonic() < deadline, kinds
        chunk = connection.recv(65536)
        if not chunk:
            return kinds
        came += chunk
        while len(came) >= 9 and len(came) >= (end := 9 + int.from_bytes(came[:3], "big")):
            kinds.add(came[3])
            if came[3] == 4 and len(came[9:end]) >= 6:
                settings = dict(struct.unpack(">HI", came[at : at + 6]) for at in range(9, end, 6))
                assert settings[3] == 3  # SETTINGS_MAX_CONCURRENT_STREAMS
            came = came[end:]
    return kinds
