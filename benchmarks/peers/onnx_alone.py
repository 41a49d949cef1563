"""ONNX Runtime alone in a process, rows ready in memory; prints what it makes, per batch size, as JSON."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from benchmarks.peers.session import load


def main() -> None:
    """Measure each batch size in turns, so that a slow moment of the machine hits all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True, help="an .npz file with cat and dense")
    parser.add_argument("--batches", default="1,8,32,64,128,256")
    parser.add_argument("--seconds", type=float, default=3.0, help="for all of them together")
    options = parser.parse_args()
    session = load(options.model)
    stored = np.load(options.rows)
    batches = [int(size) for size in options.batches.split(",")]
    feeds = {size: _cut(stored["cat"], stored["dense"], size) for size in batches}
    for size in batches:
        _turn(session, feeds[size], 0.05)
    turns = 4
    measured = {size: [0, 0.0, 0.0] for size in batches}
    for _ in range(turns):
        for size in batches:
            calls, wall, cpu = _turn(session, feeds[size], options.seconds / turns / len(batches))
            total = measured[size]
            total[0] += calls * size
            total[1] += wall
            total[2] += cpu
    report = {
        str(size): {"rows_per_second": rows / wall, "cpu_microseconds_per_row": cpu / rows * 1e6}
        for size, (rows, wall, cpu) in measured.items()
    }
    print(json.dumps(report))


def _cut(cat: np.ndarray, dense: np.ndarray, size: int) -> list[dict[str, np.ndarray]]:
    """Batches of one size out of the rows, repeated until all are in equally many batches."""
    repeats = size // np.gcd(size, len(cat))
    cat, dense = np.tile(cat, (repeats, 1)), np.tile(dense, (repeats, 1))
    return [
        {"cat": cat[start : start + size], "dense": dense[start : start + size]}
        for start in range(0, len(cat), size)
    ]


def _turn(session: object, feeds: list[dict[str, np.ndarray]], seconds: float) -> tuple[int, float, float]:
    run = session.run
    calls = 0
    started, started_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        for feed in feeds:
            run(None, feed)
        calls += len(feeds)
    return calls, time.perf_counter() - started, time.process_time() - started_cpu


if __name__ == "__main__":
    main()
