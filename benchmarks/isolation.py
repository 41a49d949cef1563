"""What a process of its own costs a batch: the same model in the server's process and isolated, in turns.

Three models: 1 and 32 rows of 1 number, and 1,000 rows of 100. Time is from the call of ``predict`` to its
answer, in one thread; processor time is that of both processes together. First where the system puts them,
mostly on a core each, then both on one core. Beside it stands what two processes take that only wake one
another through two pipes: below that nothing gets that waits in a pipe.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.processes import cores
from benchmarks.rounds import Effort, print_lines
from headrace.base.tensors import Tensors
from headrace.config import ModelConfig
from headrace.isolation.replica import Which
from headrace.isolation.servable import IsolatedServable
from headrace.model.servable import Servable
from headrace.runtimes import registry
from headrace.runtimes.registry import RuntimeOptions
from tests.model_directories import affine, mean

MOST_ADDED_MICROSECONDS = 60.0
_TURNS = 20


def run(effort: Effort) -> None:
    """Measure both sides in turns.

    Args:
        effort: How much measuring is done.
    """
    heads = ["rows x numbers", "in process", "isolated", "added", "bare pipes", "processor", "isolated", ""]
    for where, allowed in (("two cores", {*cores()[:2]}), ("one core", {cores()[0]})):
        with _only_on(allowed):
            lines = [[f"{where}: {heads[0]}", *heads[1:]]]
            for rows, numbers in ((1, 1), (32, 1), (1000, 100)):
                lines.append(_measured(rows, numbers, effort))
        print_lines(lines)


@contextmanager
def _only_on(allowed: set[int]) -> Iterator[None]:
    """Run this process, and those it starts, on some processors only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _measured(rows: int, numbers: int, effort: Effort) -> list[str]:
    shape = (rows,) if numbers == 1 else (rows, numbers)
    inputs: Tensors = {"x": np.ones(shape, np.float32)}
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made) / "1"
        directory.mkdir()
        (directory / "model.onnx").write_bytes(affine(1.0, 1.0) if numbers == 1 else mean(numbers))
        here = registry.load(directory, RuntimeOptions())
        there = IsolatedServable(Which("m", 1, directory), RuntimeOptions(), ModelConfig())
        assert np.array_equal(here.predict(inputs)["y"], there.predict(inputs)["y"])
        child = there._replicas[0].process._process.pid
        sides: list[tuple[Servable, Callable[[], float]]] = [
            (here, time.process_time),
            (there, lambda: time.process_time() + _processor_seconds(child)),
        ]
        seconds = effort.seconds / _TURNS
        turns, bare = [], []
        for _ in range(_TURNS * effort.rounds):
            turns.append([_turn(servable, inputs, seconds, clock) for servable, clock in sides])
            bare.append(_bare_microseconds(seconds / 2))
        here.close()
        there.close()
    plain, isolated = (statistics.median(turn[side][0] for turn in turns) for side in (0, 1))
    spent = [statistics.median(turn[side][1] for turn in turns) for side in (0, 1)]
    added = isolated - plain
    verdict = "ok" if added <= MOST_ADDED_MICROSECONDS else f"more than {MOST_ADDED_MICROSECONDS:g} µs"
    times = [f"{one:.1f} µs" for one in (plain, isolated, added, statistics.median(bare))]
    processor = [f"{one:.1f} µs" for one in spent]
    return [f"{rows} x {numbers}", *times, *processor, verdict]


def _turn(
    servable: Servable, inputs: Tensors, seconds: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Microseconds a batch, and those of processors."""
    for _ in range(20):
        servable.predict(inputs)
    count, spent, began = 0, clock(), time.perf_counter()
    until = began + seconds
    while time.perf_counter() < until:
        servable.predict(inputs)
        count += 1
    took, spent = time.perf_counter() - began, clock() - spent
    return took / count * 1e6, spent / count * 1e6


def _bare_microseconds(seconds: float) -> float:
    """A round trip of a few bytes to another process and back."""
    (there, ask), (answers, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(ask)
        while said := os.read(there, 32):
            os.write(answer, said)
        os._exit(0)
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        os.write(ask, b"x" * 25)
        os.read(answers, 32)
        count += 1
    took = time.perf_counter() - began
    for end in (there, ask, answers, answer):
        os.close(end)
    os.waitpid(child, 0)
    return took / count * 1e6


def _processor_seconds(process: int) -> float:
    """What a process has used of processors, to the nanosecond."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
