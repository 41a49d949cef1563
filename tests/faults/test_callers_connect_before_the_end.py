"""SIGTERM while callers have connected and sent nothing, or half a head: who sends soon is answered."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL, connect, predict_request
from tests.running_server import RunningServer

LEAD_SECONDS = 3.0
LATE_SECONDS = 1.0
"""How long after the lead they send: such a time passes between the two where many wait for a processor."""
REQUEST = predict_request(MODEL, [1.0])
SENT_BEFORE = (0, 0, 0, 0, 0, 1, 20, len(REQUEST) - 1)
"""How much of their requests."""

WAYS = {
    "one process": (),
    "two workers": ("--workers", "2"),
    "one process by uvicorn": ("--http-server", "uvicorn"),
}


@pytest.mark.rest
@pytest.mark.exact
@pytest.mark.parametrize("way", WAYS)
def test_connections_opened_in_the_drain_lead_are_answered_after_it(models: Path, way: str) -> None:
    lead = ("--drain-lead-seconds", str(LEAD_SECONDS))
    with RunningServer(models, *lead, *WAYS[way]) as server, ExitStack() as opened:
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        server.wait_for(lambda: server.count_in_log("draining") > 0, "it to drain")
        callers = [opened.enter_context(connect(server.http_port)) for _ in SENT_BEFORE]
        for caller, sent in zip(callers, SENT_BEFORE, strict=True):
            caller.sendall(REQUEST[:sent])
        time.sleep(max(0.0, began + LEAD_SECONDS + LATE_SECONDS - time.monotonic()))
        for caller, sent in zip(callers, SENT_BEFORE, strict=True):
            caller.sendall(REQUEST[sent:])
        for caller in callers:
            assert caller.recv(65536).startswith(b"HTTP/1.1 200")
        assert server.wait_until_ended() == 0


def test_silent_connections_do_not_delay_the_end(models: Path) -> None:
    options = ("--drain-lead-seconds", "0.1", *WAYS["one process by uvicorn"])  # h2corn lets it be for 15 s
    with RunningServer(models, *options) as server, connect(server.http_port) as silent:
        server.process.send_signal(signal.SIGTERM)
        assert silent.recv(1) == b""
        assert server.wait_until_ended() == 0
