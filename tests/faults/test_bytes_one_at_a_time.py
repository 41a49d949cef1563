"""A caller's bytes come one at a time, each in a packet of its own: it is answered like others."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.faults.hostile import _frame, grpc_opening
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, infer_message, predict_request
from tests.running_server import RunningServer
from tests.waiting import seconds_left

PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


def send_each(connection: socket.socket, content: bytes) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in content:
        connection.sendall(bytes([byte]))


def until(connection: socket.socket, is_whole: Callable[[bytes], bool]) -> bytes:
    """Read one byte at a time, too."""
    said = b""
    deadline = time.monotonic() + seconds_left()
    while not is_whole(said):
        assert time.monotonic() < deadline, said
        byte = connection.recv(1)
        assert byte, said
        said += byte
    return said


def ask_rest(connection: socket.socket) -> None:
    send_each(connection, predict_request(MODEL, [1.0, 2.0]))
    said = until(connection, lambda said: said.endswith(b"}"))
    assert said.startswith(b"HTTP/1.1 200 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2]) == {"predictions": [2.0, 3.0]}


def ask_grpc(connection: socket.socket) -> None:
    message = infer_message(MODEL, 1.0, 2.0)
    framed = struct.pack(">BI", 0, len(message)) + message
    cut = len(framed) // 2  # two frames, the first one without an end
    send_each(connection, grpc_opening() + _frame(0, 0, 1, framed[:cut]) + _frame(0, 1, 1, framed[cut:]))
    until(connection, lambda said: struct.pack("<2f", 2.0, 3.0) in said)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_it_is_answered_over_rest_and_grpc(models: Path, pair: tuple[str, ...]) -> None:
    with RunningServer(models, *pair) as server:
        with connect(server.http_port) as rest:
            for _ in range(2):  # the connection is kept
                ask_rest(rest)
        with connect(server.grpc_port) as over_grpc:
            ask_grpc(over_grpc)
        does_it_still_serve(server)


def test_it_is_answered_in_tls_records_of_one_byte(models: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    with RunningServer(models, *authority.options(), tls=authority.context()) as server:
        for ask, port, protocols in (
            (ask_rest, server.http_port, ["http/1.1"]),
            (ask_grpc, server.grpc_port, ["h2"]),
        ):
            context: ssl.SSLContext = authority.context()
            context.set_alpn_protocols(protocols)
            with connect(port) as plain, context.wrap_socket(plain, server_hostname="localhost") as inside:
                ask(inside)
