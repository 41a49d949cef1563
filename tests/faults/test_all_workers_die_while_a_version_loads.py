"""All workers die while a version loads slowly: those that follow answer soon for what is ready."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headrace.versions.manifest import publish
from tests.faults.still_serves import MODEL
from tests.faults.worker_processes import workers_of, workers_ready
from tests.model_directories import write
from tests.running_server import RunningServer

DOUBLES = """
class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        pass

    def predict(self, inputs):
        return {"y": 2 * inputs["x"]}
"""
LOADS_FOR_EVER = DOUBLES.replace("        pass\n", "        import time\n        time.sleep(1e6)\n")


@pytest.mark.rest
def test_those_that_follow_answer_soon(models: Path) -> None:
    write(models, "slow", 1, DOUBLES)
    options = ("--workers", "2", "--allow-code", "--drain-seconds", "1")
    with RunningServer(models, *options) as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to be ready")
        publish(lambda directory: (directory / "model.py").write_text(LOADS_FOR_EVER), models / "slow", 2)
        server.wait_for(lambda: server.count_in_log("model=slow version=2") >= 2, "both to load it")
        for worker in workers_of(server):
            os.kill(worker, signal.SIGKILL)
        statuses: set[int] = set()

        def is_answered() -> bool:
            """What the dead ones had in their hands is an ``OSError``, which is tried again."""
            status, _ = server.post(f"/v1/models/{MODEL}:predict", {"instances": [1.0]})
            statuses.add(status)
            return status == 200

        server.wait_for(is_answered, "an answer")
        assert statuses <= {200, 503}
        assert server.get("/v2/health/live")[0] == 200
        status, told = server.post("/v1/models/slow:predict", {"instances": [2.0]})
        assert (status, "is loading" in str(told)) == (503, True)
        server.wait_for(lambda: server.count_in_log("no other worker answers") >= 1, "a word about it")
        asked = time.monotonic()
        assert server.stop() == 0
        print(f"[stopped after {time.monotonic() - asked:.1f} s]", end=" ")
