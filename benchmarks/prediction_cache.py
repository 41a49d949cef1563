"""What a prediction cache spares, and what it costs where nothing is asked again: 64 tasks in one process.

The model is `ctr`, a DeepFM as ONNX. Each task awaits its answer and asks the next; processor time is that of
the whole process. `hit`: all is asked again. `new`: nothing ever is. `hot`: nine of ten are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.models import CACHE, model_directory, model_file
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from benchmarks.rows import rows_of_request
from headrace.base.tensors import Array
from headrace.serving.engine import Engine

KEPT = 256
"""Distinct requests that are asked again and again."""
TASKS = 64
ROWS = (1, 32)
SIZE_BYTES = 64 * 2**20
WANTED_HIT, WANTED_NEW = 0.2, 1.2

Inputs = Mapping[str, Array]


def run(effort: Effort) -> None:
    """Measure all kinds of questions in turns; a turn is a third of the usual length.

    Args:
        effort: How much measuring is done.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for rows in ROWS:
            runner.run(_measured(rows, effort))


async def _measured(rows: int, effort: Effort) -> None:
    asked = [rows_of_request(rows, number).inputs for number in range(KEPT)]
    new = count(1)
    seconds = effort.seconds / 3
    loop = asyncio.get_running_loop()
    async with Engine(model_directory()) as plain, Engine(_cached()) as cached:
        sides = {
            "no cache": partial(_microseconds, plain, asked, new, 1.0, seconds),
            "no cache, new": partial(_microseconds, plain, asked, new, 0.0, seconds),
            "hit": partial(_microseconds, cached, asked, new, 1.0, seconds),
            "hot": partial(_microseconds, cached, asked, new, 0.9, seconds),
            "new": partial(_microseconds, cached, asked, new, 0.0, seconds),
        }
        for measure in sides.values():
            await measure()

        def blocking(name: str) -> float:
            return asyncio.run_coroutine_threadsafe(sides[name](), loop).result()

        measures = {name: partial(blocking, name) for name in sides}
        measured = await asyncio.to_thread(interleaved, measures, effort.rounds)
    print_lines(
        [(f"{rows} rows a request", "CPU µs/request"), *((name, spread(of)) for name, of in measured.items())]
    )
    for name, beside in (("hit", "no cache"), ("hot", "no cache"), ("new", "no cache, new")):
        print(f"{rows} rows, {name} / {beside}: {spread(ratios(measured[name], measured[beside]))}")
    if rows == max(ROWS):
        hit = ratios(measured["hit"], measured["no cache"])
        verdict(f"{rows} rows, hit / no cache ≤ {WANTED_HIT}", middle(hit) <= WANTED_HIT, spread(hit))
        new = ratios(measured["new"], measured["no cache, new"])
        verdict(f"{rows} rows, new / no cache, new ≤ {WANTED_NEW}", middle(new) <= WANTED_NEW, spread(new))


def _cached() -> Path:
    """A model directory with `ctr` again, and a cache for it."""
    directory = CACHE / "cached"
    model_file(directory / "ctr" / "1" / "model.onnx", seed=0)
    (directory / "ctr" / "headrace.toml").write_text(f"[cache]\nsize_bytes = {SIZE_BYTES}\n")
    return directory


async def _microseconds(
    engine: Engine, asked: list[Inputs], new: Iterator[int], again: float, seconds: float
) -> float:
    """Processor time of a request, where a share of them is among those that are asked again."""
    answered = 0

    async def caller(number: int) -> None:
        nonlocal answered
        random = np.random.default_rng(number)
        while time.perf_counter() < until:
            inputs = asked[number % KEPT]
            if random.random() >= again:
                dense = inputs["dense"].copy()
                dense[0, 0] = next(new)
                inputs = {"cat": inputs["cat"], "dense": dense}
            await engine.predict("ctr", inputs)
            answered, number = answered + 1, number + 1

    began, until = time.process_time(), time.perf_counter() + seconds
    await asyncio.gather(*map(caller, range(TASKS)))
    return (time.process_time() - began) / answered * 1e6
