"""A worker that begins to serve when its server drains already: it drains as the others do."""

from __future__ import annotations

import http.client
import os
import signal
from pathlib import Path

import pytest

from tests.faults.worker_processes import workers_of, workers_ready
from tests.model_directories import write
from tests.running_server import RunningServer

GATED = """
import pathlib, time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        while not pathlib.Path("{gate}").exists():
            time.sleep(0.02)

    def predict(self, inputs):
        return {{"y": inputs["x"]}}
"""
"""Loads when there is a file."""


def says_close(server: RunningServer) -> bool:
    """Whether an answer says that its connection ends; where a worker is gone, some wait for no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=2)
    try:
        connection.request("GET", "/v2/health/live")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.getheader("connection") == "close"
    finally:
        connection.close()


@pytest.mark.rest
@pytest.mark.parametrize("lead_seconds", [4, 60])
def test_it_is_told_when_it_serves(models: Path, tmp_path: Path, lead_seconds: int) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    write(models, "gated", 1, GATED.format(gate=gate))
    options = ("--allow-code", "--workers", "2", "--drain-lead-seconds", str(lead_seconds))
    with RunningServer(models, *options, "--drain-seconds", "90") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        gate.unlink()
        killed, other = workers_of(server)
        loading = server.count_in_log("version is loading")
        os.kill(killed, signal.SIGKILL)
        server.wait_for(lambda: server.count_in_log("version is loading") > loading, "another one to load")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.count_in_log("draining") > 0, "it to drain")
        gate.touch()
        if lead_seconds == 4:  # to its orderly end
            assert server.wait_until_ended() == 0
            assert server.count_in_log("by itself") == 0
            return
        os.kill(other, signal.SIGKILL)  # now whoever answers is the new one
        server.wait_for(lambda: says_close(server), "an answer that ends its connection")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_until_ended() == 128 + signal.SIGTERM
