"""A server stands still for longer than a moment while callers connect: they are answered when it goes on."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, connect, does_it_still_serve, predict_request
from tests.running_server import RunningServer
from tests.stopped_processes import stopped

STILL_SECONDS = 6.5
"""More than the five seconds after which those who had just connected were once closed, unanswered."""
REQUEST = predict_request(MODEL, [1.0])


@pytest.mark.rest
def test_connections_opened_before_or_during_a_suspension_are_answered(models: Path) -> None:
    with RunningServer(models) as server, ExitStack() as opened:
        before = [opened.enter_context(connect(server.http_port)) for _ in range(5)]
        time.sleep(0.3)  # so that they are accepted
        with stopped(server.process.pid):
            meanwhile = [opened.enter_context(connect(server.http_port)) for _ in range(5)]
            for caller in (*before, *meanwhile):
                caller.sendall(REQUEST)
            time.sleep(STILL_SECONDS)
        for caller in (*before, *meanwhile):
            assert caller.recv(65536).startswith(b"HTTP/1.1 200")
        does_it_still_serve(server)
