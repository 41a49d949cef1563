"""The trainer itself: how long it takes to start, and what a second thread and a second core bring.

Rows are drawn by `headrace stream generate`: 26 categorical fields, 13 dense ones. Threads learn without
locks, so that a few of their moves are lost: the logloss shows what that costs.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from benchmarks.costs import HEADRACE, job, logloss
from benchmarks.processes import cores
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from headrace.ctr.factory import create
from headrace.ctr.model_settings import Kind, ModelSettings
from headrace.stream.block import Block, Features
from headrace.stream.block_reader import Reader, ReadSettings
from headrace.stream.click_generator import GeneratorSettings, arrow_schema, generate_batches, schema_of

BATCH_ROWS = 2048
GENERATOR = GeneratorSettings(rows=BATCH_ROWS * 80, buckets=2**18)
WARM_UP = 10
"""Blocks that are not timed."""
FACTORS: dict[Kind, int] = {"lr": 1, "fm": 16, "ffm": 4, "deepfm": 16}
MODELS = {
    kind: ModelSettings(kind=kind, factors=factors, hidden=(256, 128, 64), batch_rows=BATCH_ROWS)
    for kind, factors in FACTORS.items()
}
SIDES = {"one thread": (1, 2), "two threads on one core": (2, 1), "two threads, two cores": (2, 2)}
"""Threads and cores."""
START_ROUNDS = 3


class Turn(NamedTuple):
    """One pass over the rows.

    Attributes:
        seconds: By the clock.
        cpu_seconds: Of all threads.
        logloss: Of all rows that were timed, before they were learnt from.
    """

    seconds: float
    cpu_seconds: float
    logloss: float


def run(effort: Effort) -> None:
    """Print both tables.

    Args:
        effort: How many turns.
    """
    _starts(min(START_ROUNDS, effort.rounds))
    blocks = _blocks(_stream(GENERATOR))
    for kind, settings in MODELS.items():
        sides = {
            f"{kind}, {name}": partial(
                _learn, msgspec.structs.replace(settings, threads=threads), blocks, count
            )
            for name, (threads, count) in SIDES.items()
        }
        _learn(settings, blocks[: WARM_UP + 1], 1)  # Compiles.
        _print(interleaved(sides, min(3, effort.rounds)))


# ---- Threads ---------------------------------------------------------------------------------------


def _stream(settings: GeneratorSettings) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, arrow_schema(settings)) as writer:
        for batch in generate_batches(settings):
            writer.write_batch(batch)
    return stream.getvalue()


def _blocks(stream: bytes) -> list[Block]:
    with Reader(io.BytesIO(stream), ReadSettings(batch_rows=BATCH_ROWS)) as reader:
        return list(reader)


def _learn(settings: ModelSettings, blocks: Sequence[Block], core_count: int) -> Turn:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores()[:core_count]))
    try:
        model = create(settings, Features.of(schema_of(GENERATOR)))
        for block in blocks[:WARM_UP]:
            model.learn(block)
        loss, cpu, began = 0.0, time.process_time(), time.perf_counter()
        predicted = [model.learn(block) for block in blocks[WARM_UP:]]
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        for probabilities, block in zip(predicted, blocks[WARM_UP:], strict=True):
            loss += logloss(probabilities, block.labels)
        return Turn(seconds, cpu_seconds, loss / len(predicted))
    finally:
        os.sched_setaffinity(0, usable)


def _print(turns: dict[str, list[Turn]]) -> None:
    rows = GENERATOR.rows - WARM_UP * BATCH_ROWS
    first = [turn.seconds for turn in next(iter(turns.values()))]
    lines = [("", "rows/s", "µs CPU/row", "times one thread's", "logloss")]
    for name, of in turns.items():
        seconds = [turn.seconds for turn in of]
        lines.append(
            (
                name,
                f"{rows / middle(seconds):,.0f}",
                f"{middle([turn.cpu_seconds for turn in of]) / rows * 1e6:.2f}",
                spread(ratios(first, seconds)),
                f"{middle([turn.logloss for turn in of]):.5f}",
            )
        )
    print_lines(lines)


# ---- Starts ----------------------------------------------------------------------------------------


def _starts(rounds: int) -> None:
    """The whole `headrace train` on one row, one core: with its kernels on disk, and before."""
    lines = [("headrace train, one row", "seconds", "of CPU", "peak MB", "compiling, seconds")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one.arrows").write_bytes(_stream(GeneratorSettings(rows=1, buckets=2**18)))
        for kind in MODELS:
            command = (*HEADRACE, "train", "one.arrows", "--model", kind)
            empty = {"NUMBA_CACHE_DIR": str(folder / f"kernels-{kind}")}
            cold = job(command, folder, environment=empty)
            warm = [job(command, folder, environment=empty) for _ in range(rounds)]
            best = min(one.seconds for one in warm)
            cpu, peak = min(one.cpu_seconds for one in warm), min(one.peak_bytes for one in warm)
            lines.append((kind, f"{best:.2f}", f"{cpu:.2f}", f"{peak / 1e6:.0f}", f"{cold.seconds:.1f}"))
    print_lines(lines)
