"""Models whose loading or warm-up waits for ever: all others are served, and the server ends in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.running_server import RunningServer

DRAIN_SECONDS = 300
"""How long a server waits for requests that it has accepted: far longer than these tests wait for its end."""

DRAIN = ("--drain-seconds", str(DRAIN_SECONDS))
END_SECONDS = 140.0

MODEL = """
import threading

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        {load}

    def predict(self, inputs):
        {predict}
        return {{"y": inputs["x"]}}
"""
FOR_EVER = "threading.Event().wait()"


def hanging(models: Path, step: str, limit_seconds: float) -> None:
    """Write a model of which a step never ends."""
    steps = {"load": "pass", "predict": "pass", step: FOR_EVER}
    directory = models / "hangs"
    directory.mkdir()
    (directory / "headrace.toml").write_text(f"[versions]\nload_timeout_seconds = {limit_seconds}\n")
    (directory / ".next").mkdir()
    (directory / ".next" / "model.py").write_text(MODEL.format(**steps))
    (directory / ".next").rename(directory / "1")


@pytest.mark.parametrize("step", ["load", "predict"])
def test_a_model_that_hangs_at_the_start_fails_and_the_others_are_served(models: Path, step: str) -> None:
    hanging(models, step, 1.0)
    with RunningServer(models, "--allow-code", *DRAIN) as server:
        does_it_still_serve(server)
        status, said = server.get("/v1/models/hangs")
        assert status == 200
        assert b"took longer than versions.load_timeout_seconds = 1" in said
        assert server.stop(END_SECONDS) == 0


def test_a_server_ends_while_a_load_hangs_that_it_still_waits_for(models: Path) -> None:
    with RunningServer(models, "--allow-code", *DRAIN) as server:
        hanging(models, "load", 300.0)
        server.wait_for(lambda: b'"LOADING"' in server.get("/v1/models/hangs")[1], "the load to begin")
        does_it_still_serve(server)
        assert server.stop(END_SECONDS) == 0
