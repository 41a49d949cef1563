"""A model fails on one row: who sent it is told, and those in the same batch are answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import SLOW, write
from tests.running_server import RunningServer

ONE_AT_A_TIME = "[batching]\ninstances = 1\nmax_wait_seconds = 0.5\nmax_batch_rows = 8\n"
EXITING = """
import sys

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        if (inputs["x"] < 0).any():
            sys.exit("the model wants to end the process")
        return {"y": inputs["x"]}
"""
LOSING_ROWS = EXITING.replace(
    'sys.exit("the model wants to end the process")', 'return {"y": inputs["x"][1:]}'
)


def test_only_the_request_with_the_bad_row_fails(models: Path) -> None:
    write(models, "slow", 1, SLOW, ONE_AT_A_TIME)
    with RunningServer(models, "--allow-code") as server, ThreadPoolExecutor(8) as threads:

        def ask(seconds: float) -> tuple[int, dict[str, object]]:
            return server.post("/v1/models/slow:predict", {"instances": [seconds]})

        answers = list(threads.map(ask, [0.0, 0.01, -1.0, 0.0, 0.02, 0.0, 0.0, 0.0]))
        failed = answers.pop(2)
        assert failed[0] == 500
        assert set(failed[1]) == {"error"}
        assert "Traceback" not in str(failed[1])
        assert [status for status, _ in answers] == [200] * 7
        does_it_still_serve(server)


@pytest.mark.parametrize("code", [EXITING, LOSING_ROWS], ids=["exits", "loses rows"])
def test_a_model_that_breaks_the_rules_fails_its_requests_only(models: Path, code: str) -> None:
    write(models, "odd", 1, code)
    with RunningServer(models, "--allow-code") as server:
        for _ in range(5):
            assert server.post("/v1/models/odd:predict", {"instances": [-1.0]})[0] == 500
            answer = (200, {"predictions": [1.0, 2.0]})
            assert server.post("/v1/models/odd:predict", {"instances": [1.0, 2.0]}) == answer
        does_it_still_serve(server)
