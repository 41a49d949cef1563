"""In process: what a call costs through the engine, awaited or blocking, beside ONNX Runtime's own call.

One row a request, as a bidder asks. `alone` is the runtime's call on rows that lie ready in memory. Processor
time is that of the whole process: the callers', the engine's, and the model's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import uvloop

from benchmarks.batching import CountedModel
from benchmarks.rounds import Effort, interleaved, middle, print_lines, spread, verdict
from benchmarks.rows import rows_of_request
from headrace.base.tensors import Array
from headrace.serving.engine import Engine

REQUESTS = 256
"""Distinct requests: their embeddings stay in the caches, on all sides."""
TASKS = 64
THREADS = (16, 64)
ALONE = "alone"
WANTED = {"1 awaiting": 20.0, "1 blocking": 25.0}
WANTED_OF_THREADS = 25.0

Inputs = Mapping[str, Array]
Clients = Callable[[float], "Calls"]


@dataclass
class Calls:
    """What some callers came to.

    Attributes:
        cpu_microseconds: Processor time of the process for each call.
        per_second: Calls answered per second.
        per_call: How many requests one call of the model answered.
        waits: How long each call took, in seconds.
    """

    cpu_microseconds: float = 0.0
    per_second: float = 0.0
    per_call: float = 1.0
    waits: list[float] = field(default_factory=list)

    @property
    def median_microseconds(self) -> float:
        """The wait of the middle call."""
        return float(np.median(self.waits)) * 1e6

    @property
    def p99_microseconds(self) -> float:
        """The wait of the slowest hundredth."""
        return float(np.percentile(self.waits, 99)) * 1e6


def run(effort: Effort) -> None:
    """Measure every kind of caller in turns; a turn is a third of the usual length.

    Args:
        effort: How much measuring is done.
    """
    inputs = [rows_of_request(1, number).inputs for number in range(REQUESTS)]
    model = CountedModel()
    model.timed = False
    seconds = effort.seconds / 3
    with (
        Engine.in_thread(objects={"ctr": model}) as engine,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        kinds: dict[str, Clients] = {
            ALONE: lambda for_seconds: _threads(model, model.predict, 1, inputs, for_seconds),
            "1 awaiting": lambda for_seconds: runner.run(_tasks(model, 1, inputs, for_seconds)),
            f"{TASKS} tasks": lambda for_seconds: runner.run(_tasks(model, TASKS, inputs, for_seconds)),
            "1 blocking": lambda for_seconds: _threads(
                model, partial(engine.predict_blocking, "ctr"), 1, inputs, for_seconds
            ),
        }
        for count in THREADS:
            kinds[f"{count} threads"] = lambda for_seconds, count=count: _threads(
                model, partial(engine.predict_blocking, "ctr"), count, inputs, for_seconds
            )
        kinds[f"{THREADS[0]} threads, one core"] = _on_one_core(kinds[f"{THREADS[0]} threads"])
        for clients in kinds.values():
            clients(seconds / 3)
        measures = {name: partial(clients, seconds) for name, clients in kinds.items()}
        measured: dict[str, list[Calls]] = interleaved(measures, effort.rounds)
    _report(measured)


def _on_one_core(clients: Clients) -> Clients:
    """Run callers with all of this process's threads on one core."""

    def run(seconds: float) -> Calls:
        everywhere = os.sched_getaffinity(0)
        try:
            _allow({min(everywhere)})
            return clients(seconds)
        finally:
            _allow(everywhere)

    return run


def _allow(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


@contextmanager
def _counted(model: CountedModel) -> Iterator[Calls]:
    """Count what callers do meanwhile, and what that takes."""
    counted = Calls()
    calls, began, started = model.calls, time.process_time(), time.perf_counter()
    yield counted
    counted.per_second = len(counted.waits) / (time.perf_counter() - started)
    counted.cpu_microseconds = (time.process_time() - began) / len(counted.waits) * 1e6
    counted.per_call = len(counted.waits) / (model.calls - calls)


def _threads(
    model: CountedModel, call: Callable[[Inputs], object], threads: int, inputs: list[Inputs], seconds: float
) -> Calls:
    """Threads that call, wait for the answer, and call again; a lone caller is this very thread."""

    def caller(number: int) -> None:
        waits: list[float] = []
        asked = began = time.perf_counter()
        while asked - began < seconds:
            call(inputs[number % len(inputs)])
            answered = time.perf_counter()
            waits.append(answered - asked)
            number, asked = number + 1, answered
        counted.waits += waits

    with _counted(model) as counted:
        if threads == 1:
            caller(0)
        else:
            callers = [threading.Thread(target=caller, args=(number,)) for number in range(threads)]
            for thread in callers:
                thread.start()
            for thread in callers:
                thread.join()
    return counted


async def _tasks(model: CountedModel, tasks: int, inputs: list[Inputs], seconds: float) -> Calls:
    """Tasks that await the other form, in an engine of their loop."""

    async def caller(number: int) -> None:
        asked = began = time.perf_counter()
        while asked - began < seconds:
            await engine.predict("ctr", inputs[number % len(inputs)])
            answered = time.perf_counter()
            counted.waits.append(answered - asked)
            number, asked = number + 1, answered

    async with Engine.from_objects({"ctr": model}) as engine:
        with _counted(model) as counted:
            await asyncio.gather(*(caller(number) for number in range(tasks)))
    return counted


def _report(measured: Mapping[str, list[Calls]]) -> None:
    lines: list[tuple[str, ...]] = [("", "median µs", "p99 µs", "CPU µs/request", "requests/call", "calls/s")]
    for name, rounds in measured.items():
        lines.append(
            (
                name,
                f"{middle([one.median_microseconds for one in rounds]):.1f}",
                f"{middle([one.p99_microseconds for one in rounds]):.1f}",
                f"{middle([one.cpu_microseconds for one in rounds]):.1f}",
                f"{middle([one.per_call for one in rounds]):.1f}",
                f"{middle([one.per_second for one in rounds]):,.0f}",
            )
        )
    print_lines(lines)
    alone = [one.median_microseconds for one in measured[ALONE]]
    for name, wanted in WANTED.items():
        waits = [one.median_microseconds for one in measured[name]]
        above = [one - other for one, other in zip(waits, alone, strict=True)]
        target = f"{name}, median ≤ the runtime's call + {wanted:.0f} µs"
        verdict(target, middle(above) <= wanted, f"+ {spread(above, 1)}")
    for count in THREADS:
        cost = [one.cpu_microseconds for one in measured[f"{count} threads"]]
        target = f"{count} threads, CPU ≤ {WANTED_OF_THREADS:.0f} µs a request"
        verdict(target, middle(cost) <= WANTED_OF_THREADS, spread(cost, 1))
