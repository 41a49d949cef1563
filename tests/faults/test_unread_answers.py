"""Clients ask for much and read nothing: what that takes has a limit, and others are answered."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from headrace import example
from headrace.frontends.wire import protos
from tests.running_server import RunningServer

TEXT_BYTES = 60_000
SETTINGS = f"""
[tables.texts.columns]
text = {{ dtype = "text", bytes = {TEXT_BYTES}, default = "{"x" * TEXT_BYTES}" }}
"""
KEYS = [f"key {number}" for number in range(500)]
ANSWER_BYTES = len(KEYS) * TEXT_BYTES
MOST_BYTES = 128 * 1024 * 1024
UNREAD = 24
"""So many answers of 30 MB are not read, where large ones may have 48 MB together."""
SERVICE = "/headrace.archive.v1.Archive"
REQUEST = protos.message("headrace.archive.v1.LookupRequest")(space="texts", keys=KEYS).SerializeToString()
OPTIONS = [("grpc.max_receive_message_length", -1)]
SECONDS = 60


def ask_grpc(port: int, method: str, number: int, opened: ExitStack) -> None:
    """Ask on a connection of its own, and read nothing once the answer has begun."""
    own = [*OPTIONS, ("headrace.test.connection", number)]  # channels of the same options share connections
    channel = opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options=own))
    if method == "LookupStream":
        call = channel.stream_stream(f"{SERVICE}/{method}")(iter([REQUEST] * 3), timeout=2 * SECONDS)
    else:
        call = channel.unary_stream(f"{SERVICE}/{method}")(REQUEST, timeout=2 * SECONDS)
    opened.callback(call.cancel)
    call.initial_metadata()


def ask_rest(port: int, opened: ExitStack) -> None:
    """The same over HTTP/1.1."""
    body = json.dumps({"keys": KEYS}).encode()
    connection = opened.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(SECONDS)
    connection.connect(("127.0.0.1", port))
    head = f"POST /v1/archive/texts:lookup HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    assert connection.recv(4) == b"HTTP"


def asked(lookup: grpc.UnaryUnaryMultiCallable) -> bytes | None:
    """An answer that is read; None where there is no room for it."""
    try:
        answer: bytes = lookup(REQUEST, timeout=SECONDS)
    except grpc.RpcError as refused:
        if refused.code() != grpc.StatusCode.UNAVAILABLE or "are being sent" not in refused.details():
            raise
        return None
    return answer


def bytes_of_unread_answers(tmp_path: Path, door: str) -> int:
    """Read none of many answers, and then one: there is room for it soon; what the server took before."""
    (tmp_path / "archive.toml").write_text(SETTINGS)
    example.write(tmp_path / "models")
    options = ("--archive", str(tmp_path / "archive.toml"), "--limits-max-inflight-bytes", str(MOST_BYTES))
    with RunningServer(tmp_path / "models", *options) as server, ExitStack() as opened:
        address = f"127.0.0.1:{server.grpc_port}"
        reads = opened.enter_context(grpc.insecure_channel(address, options=OPTIONS))
        lookup = reads.unary_unary(f"{SERVICE}/Lookup")
        assert len(lookup(REQUEST, timeout=SECONDS)) > ANSWER_BYTES
        before = server.rss_bytes()
        for number in range(UNREAD):
            if door == "REST":
                ask_rest(server.http_port, opened)
            else:
                ask_grpc(server.grpc_port, door, number, opened)
        taken = server.rss_bytes() - before
        until = time.monotonic() + SECONDS  # they make room after some five seconds
        while (answer := asked(lookup)) is None:
            assert time.monotonic() < until, "the unread answers keep others out"
        assert len(answer) > ANSWER_BYTES
    return taken


DOORS = pytest.mark.parametrize("door", ["Lookup", "LookupStream", "REST"])


@pytest.mark.rest
@DOORS
def test_answers_that_nobody_reads_make_room(tmp_path: Path, door: str) -> None:
    bytes_of_unread_answers(tmp_path, door)


@pytest.mark.timing
@DOORS
def test_answers_that_nobody_reads_take_their_share(tmp_path: Path, door: str) -> None:
    assert bytes_of_unread_answers(tmp_path, door) < 2 * MOST_BYTES
