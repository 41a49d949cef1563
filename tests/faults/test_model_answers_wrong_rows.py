"""A model answers fewer or more rows than it was asked for, or other outputs: its caller gets an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import write
from tests.running_server import RunningServer

WRONG = """
import numpy as np

def twice(y):
    return {"y": np.concatenate([y, y])}

ORDERS = {
    -1: lambda y: {"y": y[1:]},
    -2: twice,
    -3: lambda y: {"y": y[:0]},
    -4: lambda y: {"y": y[:, None]},
    -5: lambda y: {"z": y},
    -6: lambda y: {"y": y, "z": y},
    -7: lambda y: {"y": np.array(["text"] * len(y))},
    -8: lambda y: None,
    -9: lambda y: {"y": None},
    -10: lambda y: y,
}


class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "INT64", [])]

    def predict(self, inputs):
        x = inputs["x"]
        for order in x[x < 0].tolist():
            return ORDERS[order](x)
        return {"y": x + 1}
"""
TOGETHER = "[batching]\ninstances = 1\nmax_wait_seconds = 0.3\nmax_batch_rows = 12\n"
SAID = {
    -1: "the model gave INT64 [0] as 'y' for a batch of 1 rows",
    -2: "the model gave INT64 [2] as 'y' for a batch of 1 rows",
    -3: "the model gave INT64 [0] as 'y' for a batch of 1 rows",
    -5: "the model declares the outputs y, but answered with z",
    -6: "the model declares the outputs y, but answered with y, z",
    -8: "the model declares the outputs y, but answered with no mapping",
}


def test_only_the_request_with_wrong_rows_gets_an_error(models: Path) -> None:
    """No row of an answer is ever guessed: rows out are rows in, or the batch is computed one by one."""
    write(models, "wrong", 1, WRONG, TOGETHER)
    with RunningServer(models, "--allow-code") as server, ThreadPoolExecutor(12) as threads:

        def ask(value: int) -> tuple[int, dict[str, object]]:
            return server.post("/v1/models/wrong:predict", {"instances": [value]})

        for order in range(-10, 0):
            wrong = threads.submit(ask, order)
            beside = list(threads.map(ask, range(10 * -order, 10 * -order + 11)))
            status, answer = wrong.result()
            assert status == 500, order
            assert "Traceback" not in str(answer)
            assert answer == {"error": SAID.get(order, answer["error"])}
            assert beside == [
                (200, {"predictions": [one + 1]}) for one in range(10 * -order, 10 * -order + 11)
            ]
        does_it_still_serve(server)
