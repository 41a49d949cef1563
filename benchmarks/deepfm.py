"""DeepFM learning in batches of 2,048: headrace, torch and Keras on one core, on the same rows.

26 categorical fields of about a million table rows together, 16 factors, 13 dense fields, layers of 256, 128
and 64; drawn by `headrace stream generate`. A number is rows by second of CPU, from the median batch. Each
side draws its first weights in its own way, which its logloss shows: these are early batches.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.models import ROOT
from benchmarks.processes import PEERS_PYTHON
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.ctr.factory import create
from headrace.ctr.model_settings import ModelSettings, Optimizer, OptimizerKind
from headrace.stream.block import Block, Features
from headrace.stream.block_reader import Reader, ReadSettings
from headrace.stream.click_generator import GeneratorSettings, arrow_schema, generate_batches, schema_of

BATCH = 2048
BATCHES = 40
WARM_UP = 4
"""Batches that are not measured: kernels load, graphs are built."""

GENERATOR = GeneratorSettings(rows=BATCH * BATCHES, buckets=2**18)
LAST = BATCHES // 2
"""The batches whose losses are compared: by then initial weights matter little."""


class Turn(NamedTuple):
    """One side's pass over the rows.

    Attributes:
        per_second: Rows by second of CPU.
        logloss: Of the last batches, each predicted before it was learnt from.
    """

    per_second: float
    logloss: float


def run(effort: Effort) -> None:
    """Print the table and the verdicts."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "rows.npz"
        _write_rows(file)
        sides: dict[str, Callable[[], Turn]] = {
            f"headrace, {kind}": _side([sys.executable, "-m", "benchmarks.deepfm", str(file), kind])
            for kind in ("lazy_adam", "adam", "adagrad")
        }
        keras = ROOT / "benchmarks" / "peers" / "deepfm_keras.py"
        for kind, said in (("dense", "Adam"), ("lazy", "headrace's lazy Adam")):
            sides[f"Keras, {said}"] = _side([sys.executable, str(keras), str(file), kind])
        if _has_torch():
            script = str(ROOT / "benchmarks" / "peers" / "deepfm_torch.py")
            for kind, said in (("sparse", "SparseAdam"), ("dense", "Adam")):
                sides[f"torch, {said}"] = _side([str(PEERS_PYTHON), script, str(file), kind])
        else:
            print("  torch is not installed: `.venvs/peers/bin/python -m pip install torch` for its figures")
        measured = interleaved(sides, effort.rounds)
    _show({name: list(turns) for name, turns in measured.items()})


def _show(measured: dict[str, list[Turn]]) -> None:
    ours = [turn.per_second for turn in measured["headrace, lazy_adam"]]
    lines = [["", "rows by CPU second", "headrace's lazy Adam is", "logloss"]]
    for name, turns in measured.items():
        speeds = [turn.per_second for turn in turns]
        losses = middle([turn.logloss for turn in turns])
        lines.append([name, spread(speeds, 0), spread(ratios(ours, speeds)), f"{losses:.4f}"])
    print_lines(lines)
    for name, least in (("headrace, adam", 1.4), ("torch, SparseAdam", 5.0)):
        if name in measured:
            ratio = middle(ratios(ours, [turn.per_second for turn in measured[name]]))
            verdict(f"lazy Adam at least {least} × {name}", ratio >= least, f"{ratio:.2f} ×")


def _write_rows(file: Path) -> None:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, arrow_schema(GENERATOR)) as writer:
        for batch in generate_batches(GENERATOR):
            writer.write_batch(batch)
    stream.seek(0)
    with Reader(stream, ReadSettings(batch_rows=BATCH)) as reader:
        blocks = list(reader)
        table_rows = reader.features.rows
    joined = {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("indices", "dense", "labels")
    }
    joined["indices"] = joined["indices"].astype(np.int64)
    np.savez(file, batch=BATCH, table_rows=table_rows, **joined)


def _side(command: Sequence[str]) -> Callable[[], Turn]:
    """How to run a side on one core, with one thread."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | one | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

    def turn() -> Turn:
        done = subprocess.run(
            ["taskset", "-c", "0", *command],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
        median = statistics.median(told["seconds"][WARM_UP:])
        return Turn(BATCH / median, statistics.fmean(told["losses"][LAST:]))

    return turn


def _has_torch() -> bool:
    if not PEERS_PYTHON.exists():
        return False
    command = [str(PEERS_PYTHON), "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
    return subprocess.run(command, check=False).returncode == 0


def _learn(file: str, kind: OptimizerKind) -> None:
    """Our own side: learn all rows, and print the CPU time and the logloss of each batch."""
    rows, rate = np.load(file), 0.05 if kind == "adagrad" else 0.001
    indices, dense, labels = rows["indices"].astype(np.uint32), rows["dense"], rows["labels"]
    optimizer = Optimizer(kind=kind, learning_rate=rate)
    settings = ModelSettings(
        factors=16, hidden=(256, 128, 64), linear=optimizer, embeddings=optimizer, batch_rows=BATCH
    )
    model = create(settings, Features.of(schema_of(GENERATOR)))
    losses, seconds = [], []
    for start in range(0, len(indices), BATCH):
        part = slice(start, start + BATCH)
        block = Block(indices[part], dense[part], labels[part])
        began = time.process_time()
        predicted = model.learn(block)
        seconds.append(time.process_time() - began)
        right = np.where(block.labels > 0, predicted, 1 - predicted)
        losses.append(float(-np.log(right).mean()))
    print(json.dumps({"seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    _learn(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]
