"""A caller reads its answer slowly: it gets it whole, and its neighbours get theirs meanwhile."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faults.hostile import _frame, grpc_opening
from tests.faults.neighbours import Connection
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, infer_message, predict_request
from tests.model_directories import write
from tests.running_server import RunningServer

VALUES = 100_000
WIDE = f"""
import numpy as np

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [{VALUES}])]

    def predict(self, inputs):
        return {{"y": inputs["x"][:, None] + np.arange({VALUES}, dtype=np.float32)}}
"""
WANTED = [1.0 + number for number in range(VALUES)]
READERS = 12
PIECE_BYTES = 16_384
ASKED_BETWEEN = 40
MOST_BYTES = 256 * 1024 * 1024


def slow(port: int, opened: ExitStack) -> socket.socket:
    """A connection whose caller takes little at a time, as the system tells the server."""
    connection = opened.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    return connection


def ask_neighbours(server: RunningServer) -> None:
    with closing(Connection(server.http_port)) as neighbour:
        for _ in range(ASKED_BETWEEN):
            assert neighbour.send(predict_request(MODEL, [1.0])) == 200


def test_answers_come_whole_while_neighbours_are_answered(models: Path) -> None:
    growth_of_unread_answers(models)


@pytest.mark.timing
def test_unread_answers_take_little_memory(models: Path) -> None:
    assert growth_of_unread_answers(models) < MOST_BYTES


def growth_of_unread_answers(models: Path) -> int:
    """Read large answers slowly, and ask beside them; by how many bytes the server had grown."""
    write(models, "wide", 1, WIDE)
    with RunningServer(models, "--allow-code") as server, ExitStack() as opened:
        before = server.rss_bytes()
        readers = [slow(server.http_port, opened) for _ in range(READERS)]
        for reader in readers:
            reader.sendall(predict_request("wide", [1.0]))
        heads = [reader.recv(PIECE_BYTES) for reader in readers]  # it is being sent
        assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
        ask_neighbours(server)
        growth = server.rss_bytes() - before
        for reader in readers[2:]:
            reader.close()  # these have had enough
        for reader, head in zip(readers[:2], heads[:2], strict=True):
            said, deadline = bytearray(head), time.monotonic() + 60
            while not said.endswith(b"}"):
                assert time.monotonic() < deadline
                piece = reader.recv(PIECE_BYTES)
                assert piece
                said += piece
                if len(said) // PIECE_BYTES % 16 == 0:
                    server.get("/v2/health/live")  # others' turns, one after another
            assert json.loads(said.partition(b"\r\n\r\n")[2])["predictions"] == [WANTED]
        does_it_still_serve(server)
        assert server.stop() == 0
        return growth


def test_a_grpc_caller_that_opens_no_window_holds_up_nobody_and_its_server_ends(models: Path) -> None:
    """It never lets the server send more than HTTP/2 permits at first, 65,535 bytes."""
    write(models, "wide", 1, WIDE)
    message = infer_message("wide", 1.0)
    framed = struct.pack(">BI", 0, len(message)) + message
    options = ("--allow-code", "--drain-seconds", "2")
    with RunningServer(models, *options) as server, connect(server.grpc_port) as reader:
        reader.sendall(grpc_opening() + _frame(0, 1, 1, framed))
        came = 0
        while came < 65_000:
            came += len(reader.recv(65_536))
        ask_neighbours(server)
        does_it_still_serve(server)
        assert server.stop() == 0
