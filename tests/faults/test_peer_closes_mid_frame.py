"""Callers end their connections in the middle of what they send: what that held is free again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.hostile import _frame, grpc_opening
from tests.faults.neighbours import Connection
from tests.faults.still_serves import MODEL, connect, does_it_still_serve, hang_up, http_request
from tests.faults.strict_callers import Callers, http1
from tests.faults.worker_processes import scrape
from tests.running_server import RunningServer

MESSAGE_BYTES = 300_000
LIMITS = f"[limits]\nmax_message_bytes = {4 * MESSAGE_BYTES}\nmax_inflight_bytes = {8 * MESSAGE_BYTES}\n"
TIMES, AT_ONCE = 60, 6
WHOLE = http_request(f"/v1/models/{MODEL}:predict", b'{"instances": [1.0]' + b" " * MESSAGE_BYTES + b"}")
PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}


def rest_body(server: RunningServer) -> tuple[int, bytes]:
    """Half of a body."""
    return server.http_port, WHOLE[: len(WHOLE) // 2]


def data_frame(server: RunningServer) -> tuple[int, bytes]:
    """A frame of 16 KB, of which half is sent."""
    message = struct.pack(">BI", 0, MESSAGE_BYTES) + bytes(16_379)
    return server.grpc_port, grpc_opening() + _frame(0, 0, 1, message)[:8_000]


def grpc_message(server: RunningServer) -> tuple[int, bytes]:
    """Whole frames, of a message of which more should come."""
    message = struct.pack(">BI", 0, MESSAGE_BYTES) + bytes(3 * 16_384 - 5)
    frames = b"".join(_frame(0, 0, 1, message[at : at + 16_384]) for at in range(0, len(message), 16_384))
    return server.grpc_port, grpc_opening() + frames


def prefix_of_a_message(server: RunningServer) -> tuple[int, bytes]:
    """Three of the five bytes that say how long a message is."""
    return server.grpc_port, grpc_opening() + _frame(0, 0, 1, struct.pack(">BI", 0, 1000)[:3])


def head_of_a_frame(server: RunningServer) -> tuple[int, bytes]:
    """Four of a frame's nine bytes."""
    return server.grpc_port, grpc_opening() + _frame(0, 0, 1, bytes(100))[:4]


CUT = (rest_body, data_frame, grpc_message, prefix_of_a_message, head_of_a_frame)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_cut_connection_frees_its_memory_and_disturbs_no_other_caller(
    models: Path, tmp_path: Path, pair: tuple[str, ...]
) -> None:
    """Each is cut sixty times, with and without a reset: four that stayed would fill the budget."""
    (settings := tmp_path / "server.toml").write_text(LIMITS, "utf-8")
    with RunningServer(models, "--config", str(settings), *pair) as server:
        before = scrape(server)["process_open_fds"]
        with Callers(http1, server, 1, 0.002) as tally:
            server.wait_for(lambda: tally.answered > 0, "somebody else to be served")
            before_cuts = tally.answered
            for cut in CUT:
                cut_off(server, cut, before)
            server.wait_for(lambda: tally.answered > before_cuts, "him to be served on")
            tally.ended.set()
        assert tally.lost == []
        with closing(Connection(server.http_port)) as caller:
            server.wait_for(lambda: caller.send(WHOLE) == 200, "the budget to be free again")
            assert [caller.send(WHOLE) for _ in range(3)] == [200] * 3
        outstanding = f'headrace_outstanding_requests{{model="{MODEL}",version="1"}}'
        server.wait_for(
            lambda: (
                (now := scrape(server))["process_open_fds"] <= before + 8 and now.get(outstanding, 0.0) == 0.0
            ),
            "their connections to be gone",
        )
        assert server.count_in_log("Traceback") == 0
        does_it_still_serve(server)
        assert server.stop() == 0


def cut_off(
    server: RunningServer, cut: Callable[[RunningServer], tuple[int, bytes]], descriptors: float
) -> None:
    """Cut sixty calls off, some at a time: the server sees an end a moment later, and more would fill it."""
    port, content = cut(server)
    for number in range(TIMES):
        connection = connect(port)
        try:
            connection.sendall(content)
        finally:
            if number % 2:
                hang_up(connection)
            else:
                connection.close()
        if number % AT_ONCE == AT_ONCE - 1:
            does_it_still_serve(server)  # so it has accepted those who came before
            server.wait_for(
                lambda: scrape(server)["process_open_fds"] <= descriptors + 8, "their ends to be seen"
            )
