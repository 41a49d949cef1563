"""The start: how soon headrace gives a right answer, and how much memory it holds beside the model."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.processes import running
from benchmarks.rounds import Effort, spread, verdict
from benchmarks.rows import inference
from benchmarks.sides import Contender, headrace, model_path

MEGABYTE = 1e6


def run(effort: Effort) -> None:
    """Start the server several times on its one core; load it for a while before its memory is read.

    Args:
        effort: How much measuring is done.
    """
    side = headrace("grpc")
    model = Path(model_path()).stat().st_size / MEGABYTE
    waits, fresh, used = [], [], []
    inference()  # What the asking side has to import is not the server's time.
    for _ in range(effort.rounds):
        started = time.monotonic()
        with running(side.command) as server:
            contender = Contender(side, server, 1)
            waits.append(contender.ready_at - started)
            fresh.append(server.counters().resident_bytes / MEGABYTE - model)
            contender.load(effort.seconds)
            used.append(server.counters().resident_bytes / MEGABYTE - model)
    if sys.dont_write_bytecode:
        print("  PYTHONDONTWRITEBYTECODE is set: where no .pyc files are, each start compiles headrace anew")
    print(f"  the model's own size: {model:.1f} MB")
    print(f"  memory beside it, fresh: {spread(fresh, 1)} MB")
    verdict("first right answer < 1 s after the start", max(waits) < 1, f"{spread(waits)} s")
    verdict("memory beside the model < 150 MB after load", max(used) < 150, f"{spread(used, 1)} MB")
