"""A client that sends its body byte by byte is cut off after the limit; others are served meanwhile."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.faults.hostile import grpc_opening
from tests.faults.still_serves import connect, does_it_still_serve, predict_request
from tests.running_server import RunningServer

LIMIT_SECONDS = 1.0
PATIENCE_SECONDS = 40.0
PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


def trickle(connection: socket.socket, content: bytes) -> bytes:
    """Send byte by byte until the server has had enough; what it said."""
    began = time.monotonic()
    connection.settimeout(0.05)
    for byte in content:
        try:
            connection.sendall(bytes([byte]))
            answer = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            answer = b""
        return answer
    raise AssertionError(f"it still listens after {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("pace", ["a trickle", "nothing at all"])
def test_a_body_that_does_not_arrive_is_given_up(
    models: Path, tmp_path: Path, options: tuple[str, ...], pace: str
) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f"[limits]\nbody_timeout_seconds = {LIMIT_SECONDS}\n", "utf-8")
    with RunningServer(models, "--config", str(settings), *options) as server:
        with connect(server.http_port) as connection:
            head, _, body = predict_request("good", [1.0] * 200).partition(b"\r\n\r\n")
            began = time.monotonic()
            connection.sendall(head + b"\r\n\r\n")
            answer = trickle(connection, body) if pace == "a trickle" else connection.recv(65536)
            seconds = time.monotonic() - began
        assert seconds > 0.5 * LIMIT_SECONDS
        # Where the server under us was faster, it answers 408 or just hangs up.
        assert answer.split(b" ")[1:2] in ([b"504"], [b"408"], []), answer
        does_it_still_serve(server)


def test_a_grpc_message_that_does_not_arrive_is_given_up(models: Path, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f"[limits]\nbody_timeout_seconds = {LIMIT_SECONDS}\n", "utf-8")
    with RunningServer(models, "--config", str(settings)) as server:
        with connect(server.grpc_port) as connection:
            connection.sendall(grpc_opening())
            said, until = b"", time.monotonic() + PATIENCE_SECONDS
            while b"grpc-status" not in said:
                assert time.monotonic() < until, said
                try:
                    chunk = connection.recv(65536)
                except ConnectionError:
                    break
                if not chunk:
                    break
                said += chunk
                if b"\x00\x00\x04\x03" in said:  # RST_STREAM: four bytes of type three
                    break
        does_it_still_serve(server)
