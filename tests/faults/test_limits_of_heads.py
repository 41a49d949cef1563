"""Heads that are too large or too many, and connections that say nothing: refused, and the server goes on."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tests.faults.still_serves import MODEL, does_it_still_serve
from tests.faults.strict_callers import (
    _END_HEADERS,
    _END_STREAM,
    _HEADERS,
    _PREFACE,
    _SETTINGS,
    _frame,
    _text,
)
from tests.running_server import RunningServer

SECONDS = 30.0
TOO_LARGE = 431


def headers(many: int) -> dict[str, str]:
    return {f"x-{number}": "a" for number in range(many)}


def test_too_many_or_too_long_headers_over_http1_are_refused(models: Path) -> None:
    with RunningServer(models) as server:
        address = f"http://127.0.0.1:{server.http_port}/v1/models/{MODEL}"
        with httpx.Client() as client:
            assert client.get(address, headers=headers(50)).status_code == 200
            assert client.get(address, headers=headers(120)).status_code == TOO_LARGE
            assert client.get(address, headers={"x": "a" * 30_000}).status_code == 200
            assert client.get(address, headers={"x": "a" * 40_000}).status_code == TOO_LARGE
            assert client.get(address + "?" + "a" * 20_000).status_code in {414, TOO_LARGE}
        does_it_still_serve(server)


def test_too_many_headers_over_http2_are_refused(models: Path) -> None:
    with (
        RunningServer(models) as server,
        socket.create_connection(("127.0.0.1", server.http_port), timeout=SECONDS) as connection,
    ):
        head = b"\x82\x86" + _text(b"\x04", f"/v1/models/{MODEL}") + _text(b"\x01", "localhost")
        more = b"".join(b"\x00" + _text(_text(b"", f"x-{number}"), "a") for number in range(120))
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
        connection.sendall(_frame(_HEADERS, _END_HEADERS | _END_STREAM, 1, head + more))
        answered = b""
        with connection.makefile("rb") as reader:
            while len(start := reader.read(9)) == 9:
                payload = reader.read(int.from_bytes(start[:3], "big"))
                if int.from_bytes(start[5:9], "big") == 1:
                    answered = payload
                    break
        assert b"431" in answered or answered[:1] != b"\x88", answered
        does_it_still_serve(server)


@pytest.mark.rest
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_a_connection_that_says_nothing_is_closed(models: Path, tmp_path: Path, encrypted: bool) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    options = authority.options() if encrypted else ()
    with RunningServer(models, *options, tls=authority.context() if encrypted else None) as server:
        ports = (server.http_port, server.grpc_port)
        opened = [socket.create_connection(("127.0.0.1", port), timeout=SECONDS) for port in ports]
        for silent in opened:
            with silent:
                assert silent.recv(1) == b"", "after fifteen seconds"
        assert server.get("/v2/health/live")[0] == 200
