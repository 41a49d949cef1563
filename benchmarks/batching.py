"""In process: a saturating stream of small requests through the engine, beside one model call each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import uvloop

from benchmarks.costs import on_one_core
from benchmarks.models import DENSE, FIELDS
from benchmarks.peers.session import load
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from benchmarks.rows import Floats, Rows, rows_of_request
from benchmarks.sides import TOLERANCE, model_path
from headrace.base.errors import HeadraceError
from headrace.base.tensors import Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.serving.engine import Engine

CALLERS = 64
REQUESTS = 4096
"""Distinct requests of 1 … 8 rows: their embeddings are more than a core's caches hold."""
MOST_ROWS = 8
TIMEOUT_SECONDS = 0.1
FLOAT32 = np.dtype(np.float32)

Ask = Callable[[Rows], Awaitable[Floats]]


class CountedModel:
    """A Servable that counts its calls and the CPU time they take.

    Attributes:
        signatures: What it takes and gives.
        platform: What runs it.
        calls: How many calls it has had.
        cpu_seconds: The CPU time that its calls have taken.
        timed: Whether that is measured.
    """

    def __init__(self) -> None:
        """Load the model."""
        inputs = (TensorSpec("cat", np.dtype(np.int32), (FIELDS,)), TensorSpec("dense", FLOAT32, (DENSE,)))
        signature = Signature(DEFAULT_SIGNATURE, inputs, (TensorSpec("p", FLOAT32, (1,)),))
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: signature}
        self.platform = "onnxruntime_onnx"
        self.calls = 0
        self.cpu_seconds = 0.0
        self.timed = True
        self._session = load(model_path())

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a batch."""
        started = time.thread_time() if self.timed else 0.0
        (p,) = self._session.run(None, dict(inputs))
        if self.timed:
            self.cpu_seconds += time.thread_time() - started
        self.calls += 1
        return {"p": p}

    def close(self) -> None:
        """Nothing needs to be freed."""


@dataclass
class Stream:
    """What a stream of requests came to.

    Attributes:
        seconds: How long it lasted.
        rows: Rows answered.
        late: Requests refused or expired.
        calls: Calls of the model.
        model_seconds: CPU time of these calls.
        waits: How long each answer took, in seconds.
    """

    seconds: float = 0.0
    rows: int = 0
    late: int = 0
    calls: int = 0
    model_seconds: float = 0.0
    waits: list[float] = field(default_factory=list)

    @property
    def requests_per_call(self) -> float:
        """Requests answered by one call of the model."""
        return len(self.waits) / self.calls

    @property
    def model_microseconds(self) -> float:
        """CPU time of the model, in microseconds a row."""
        return self.model_seconds / self.rows * 1e6

    @property
    def mean_milliseconds(self) -> float:
        """Mean latency."""
        return float(np.mean(self.waits)) * 1e3


def run(effort: Effort) -> None:
    """Measure three streams in turns: batched, unbatched, and a lone caller's unbatched.

    Args:
        effort: How much measuring is done.
    """
    sizes = np.random.default_rng(0).integers(1, MOST_ROWS + 1, REQUESTS).tolist()
    requests = [rows_of_request(rows, number) for number, rows in enumerate(sizes)]
    with on_one_core():
        model = CountedModel()
        with ThreadPoolExecutor(1) as thread, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            engine = Engine.from_objects({"ctr": model})
            runner.run(engine.start())
            try:
                asks = _asks(engine, model, thread)
                difference = runner.run(_difference(engine, model, requests))
                measures = {
                    name: lambda ask=ask, callers=callers: runner.run(
                        _stream(ask, callers, requests, model, effort.seconds)
                    )
                    for name, (ask, callers) in asks.items()
                }
                for measure in measures.values():
                    measure()
                measured: dict[str, list[Stream]] = interleaved(measures, effort.rounds)
            finally:
                runner.run(engine.close())
    _report(measured, difference)


def _asks(engine: Engine, model: CountedModel, thread: ThreadPoolExecutor) -> dict[str, tuple[Ask, int]]:
    """How each stream asks for an answer, and from how many callers."""

    async def batched(rows: Rows) -> Floats:
        answer = await engine.predict("ctr", rows.inputs, timeout_seconds=TIMEOUT_SECONDS)
        return answer["p"]

    async def unbatched(rows: Rows) -> Floats:
        answer = await asyncio.get_running_loop().run_in_executor(thread, model.predict, rows.inputs)
        return answer["p"]

    async def direct(rows: Rows) -> Floats:
        return model.predict(rows.inputs)["p"]

    return {"batched": (batched, CALLERS), "unbatched": (unbatched, CALLERS), "lone, unbatched": (direct, 1)}


async def _difference(engine: Engine, model: CountedModel, requests: list[Rows]) -> float:
    """The largest difference between a batched answer and the unbatched one, over all requests."""
    largest = 0.0
    for start in range(0, len(requests), CALLERS):
        some = requests[start : start + CALLERS]
        answers = await asyncio.gather(*(engine.predict("ctr", rows.inputs) for rows in some))
        for rows, answer in zip(some, answers, strict=True):
            largest = max(largest, float(np.abs(answer["p"] - model.predict(rows.inputs)["p"]).max()))
    return largest


async def _stream(
    ask: Ask, callers: int, requests: list[Rows], model: CountedModel, seconds: float
) -> Stream:
    """Callers that ask, wait for the answer, and ask again, for some seconds."""
    stream = Stream()
    calls, cpu_seconds = model.calls, model.cpu_seconds
    following = itertools.cycle(requests)
    started = time.perf_counter()

    async def caller() -> None:
        while (asked := time.perf_counter()) - started < seconds:
            rows = next(following)
            try:
                await ask(rows)
            except HeadraceError:
                stream.late += 1
                await asyncio.sleep(0)
                continue
            stream.waits.append(time.perf_counter() - asked)
            stream.rows += len(rows)

    await asyncio.gather(*(caller() for _ in range(callers)))
    stream.seconds = time.perf_counter() - started
    stream.calls, stream.model_seconds = model.calls - calls, model.cpu_seconds - cpu_seconds
    return stream


def _report(measured: Mapping[str, list[Stream]], difference: float) -> None:
    head = ("", "requests/s", "rows/s", "requests/call", "model µs/row", "mean ms", "p99 ms", "late")
    lines: list[tuple[str, ...]] = [head]
    for name, rounds in measured.items():
        lines.append(
            (
                name,
                f"{middle([len(one.waits) / one.seconds for one in rounds]):,.0f}",
                f"{middle([one.rows / one.seconds for one in rounds]):,.0f}",
                f"{middle([one.requests_per_call for one in rounds]):.1f}",
                f"{middle([one.model_microseconds for one in rounds]):.2f}",
                f"{middle([one.mean_milliseconds for one in rounds]):.3f}",
                f"{middle([float(np.percentile(one.waits, 99)) * 1e3 for one in rounds]):.3f}",
                f"{sum(one.late for one in rounds)}/{sum(one.late + len(one.waits) for one in rounds)}",
            )
        )
    print_lines(lines)
    _verdicts(measured, difference)


def _verdicts(measured: Mapping[str, list[Stream]], difference: float) -> None:
    batched, unbatched, lone = measured["batched"], measured["unbatched"], measured["lone, unbatched"]
    fewer = [one.requests_per_call for one in batched]
    verdict("compute calls ÷ ≥ 5", middle(fewer) >= 5, f"÷ {spread(fewer, 1)}")
    for name, others in (("the same stream unbatched", unbatched), ("a lone caller's unbatched calls", lone)):
        less = ratios([one.model_microseconds for one in others], [one.model_microseconds for one in batched])
        verdict(f"model CPU ÷ ≥ 2 beside {name}", middle(less) >= 2, f"÷ {spread(less)}")
        pairs = zip(batched, others, strict=True)
        longer = [one.mean_milliseconds - other.mean_milliseconds for one, other in pairs]
        verdict(f"mean latency ≤ 5 ms above {name}", middle(longer) <= 5, f"{spread(longer)} ms")
    late = sum(one.late for one in batched)
    share = late / (late + sum(len(one.waits) for one in batched))
    verdict(f"timeouts of {TIMEOUT_SECONDS * 1e3:.0f} ms < 0.01 %", share < 1e-4, f"{share:.4%}")
    verdict(
        f"batched answers within {TOLERANCE:g} of unbatched ones",
        difference <= TOLERANCE,
        f"{difference:.1e}",
    )
