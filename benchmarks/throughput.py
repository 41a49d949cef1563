"""gRPC, 32 rows per request: predictions/s beside what ONNX Runtime alone makes in process on that core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.models import CACHE
from benchmarks.processes import cores, on_core
from benchmarks.rounds import (
    Effort,
    interleaved,
    loaded,
    middle,
    print_lines,
    ratios,
    spread,
    table,
    verdict,
)
from benchmarks.rows import Rows, joined
from benchmarks.sides import best_of, contenders, grpcio, headrace, model_path, mosec

ROWS = 32
BATCHES = (1, 8, 32, 64, 128, 256)
TARGET = 0.9

Alone = dict[int, dict[str, float]]


def run(effort: Effort) -> None:
    """Measure in turns: headrace, the peers, and ONNX Runtime alone at each batch size.

    Args:
        effort: How much measuring is done.
    """
    peer = best_of([mosec(batch, 1) for batch in (4, 8, 16, 32)], ROWS)
    ours = headrace("grpc")
    with contenders([ours, grpcio(), peer], ROWS) as running:
        rows = stored_rows(joined(running[ours.name].requests))
        measures = {name: loaded(one, effort) for name, one in running.items()}
        measured = interleaved(
            {**measures, "alone": lambda: onnx_alone(rows, BATCHES, effort.seconds)}, effort.rounds
        )
    alone: list[Alone] = measured.pop("alone")
    table(measured, ROWS)
    made = {size: [one[size]["rows_per_second"] for one in alone] for size in BATCHES}
    cpu = {size: [one[size]["cpu_microseconds_per_row"] for one in alone] for size in BATCHES}
    lines = [("ONNX Runtime alone, batch", "rows/s", "CPU µs/row")]
    lines += [(str(size), f"{middle(made[size]):,.0f}", f"{middle(cpu[size]):.2f}") for size in BATCHES]
    print_lines(lines)
    served = [one.per_second * ROWS for one in measured[ours.name]]
    best = max(BATCHES, key=lambda size: middle(made[size]))
    for label, size in (("the request's batch", ROWS), ("its best batch", best)):
        share = ratios(served, made[size])
        verdict(
            f"gRPC, 32 rows, ≥ {TARGET} of ONNX Runtime alone at {label} ({size})",
            middle(share) >= TARGET,
            f"{spread(share)} of its predictions/s",
        )
        spent = [one.cpu_microseconds / ROWS for one in measured[ours.name]]
        print(f"  by CPU time per prediction, less disturbed: {spread(ratios(cpu[size], spent))}")


def stored_rows(rows: Rows) -> Path:
    """Write the rows that the servers get where ONNX Runtime alone finds them."""
    path = CACHE / "rows.npz"
    np.savez(path, cat=rows.cat, dense=rows.dense)
    return path


def onnx_alone(rows: Path, batches: tuple[int, ...], seconds: float) -> Alone:
    """Run ONNX Runtime alone on the servers' core, with this environment's version of it.

    Args:
        rows: The file of rows.
        batches: The batch sizes.
        seconds: How long, for all of them together.
    """
    sizes = ",".join(map(str, batches))
    options = ["--model", model_path(), "--rows", str(rows), "--batches", sizes, "--seconds", str(seconds)]
    command = on_core(cores()[0], [sys.executable, "-m", "benchmarks.peers.onnx_alone", *options])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return {int(size): numbers for size, numbers in json.loads(done.stdout).items()}
