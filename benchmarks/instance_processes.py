"""What instances in processes bring a model that holds the GIL: one process and two, in turns.

The model is a loop in plain Python of some milliseconds a row. Eight threads ask it in process, one row each,
without batching. Beside the two stand two instances in threads of the server.
"""

from __future__ import annotations

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.config import ServerConfig
from headrace.serving.engine import Engine
from tests.model_directories import write

LEAST_RATIO = 1.6
_CALLERS = 8
_SIDES = {
    "2 threads": "instances = 2",
    "1 process": "instance_processes = 1",
    "2 processes": "instance_processes = 2",
}
_MODEL = """
class Model:
    inputs = [("steps", "INT64", [])]
    outputs = [("y", "INT64", [])]

    def predict(self, inputs):
        y = 0
        for number in range(int(inputs["steps"].max())):
            y += number % 7
        return {"y": [y] * len(inputs["steps"])}
"""
_STEPS = 60_000


def run(effort: Effort) -> None:
    """Measure the sides in turns.

    Args:
        effort: How much measuring is done.
    """
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = {side: side.replace(" ", "_") for side in _SIDES}
        for side, setting in _SIDES.items():
            write(models, names[side], 1, _MODEL, f"[batching]\nmax_batch_rows = 1\n{setting}\n")
        engine = stack.enter_context(Engine.in_thread(models, config=ServerConfig(allow_code=True)))
        measured = interleaved(
            {
                side: lambda name=name: _per_second(engine, name, effort.seconds)
                for side, name in names.items()
            },
            effort.rounds,
        )
    lines = [["", "requests/s", "of 1 process"]]
    for side, rates in measured.items():
        lines.append([side, f"{middle(rates):,.0f}", spread(ratios(rates, measured["1 process"]))])
    print_lines(lines)
    gained = ratios(measured["2 processes"], measured["1 process"])
    verdict(
        f"2 processes answer >= {LEAST_RATIO} x as many as 1", middle(gained) >= LEAST_RATIO, spread(gained)
    )


def _per_second(engine: Engine, name: str, seconds: float) -> float:
    """How many requests a second threads are answered that ask without a pause."""
    counted, lock = 0, threading.Lock()
    began = time.perf_counter()

    def ask() -> None:
        nonlocal counted
        answered = 0
        while time.perf_counter() < began + seconds:
            engine.predict_blocking(name, {"steps": [_STEPS]})
            answered += 1
        with lock:
            counted += answered

    with ThreadPoolExecutor(_CALLERS) as callers:
        for asking in [callers.submit(ask) for _ in range(_CALLERS)]:
            asking.result()
    return counted / (time.perf_counter() - began)
