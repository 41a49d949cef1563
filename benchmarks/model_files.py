"""Versions of a click model of 1M rows of 16 weights: sizes, times, and errors in 16 and 8 bits.

Patches are on the whole version; values of the stream follow Zipf's law. Times are the best of several.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.rounds import Effort
from headrace.base.tensors import Array
from headrace.ctr.click_model import NO_SHIFT, ONE_SCALE, Table, Weights
from headrace.ctr.files.model_files import read_model, weights_of
from headrace.ctr.files.quantization import Bits, dequantize_table, quantize_table
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.model_arrays import expected_shapes
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.publishing import Publication, Publisher, Training
from headrace.training.running.checkpoint import load_checkpoint, save_checkpoint
from headrace.versions.layout import version_directories
from headrace.versions.retention import delete_versions

FIELDS, BUCKETS, FACTORS, DENSE = 26, 40_000, 16, 13
LEARNT_ROWS = 2_000_000
STREAM_ROWS = (10_000, 100_000)
SETTINGS = ModelSettings(kind="deepfm", factors=FACTORS, hidden=(256, 128, 64))
FEATURES = Features.of(
    Schema(
        fields=(
            *(Field(name=f"c{number:02}", role="categorical", buckets=BUCKETS) for number in range(FIELDS)),
            *(Field(name=f"d{number:02}", role="dense") for number in range(DENSE)),
        )
    )
)


def weights() -> Weights:
    """A model as if it had learnt."""
    random = np.random.default_rng(0)
    counts = _touched(random, LEARNT_ROWS)
    arrays: dict[str, Array] = {}
    for name, shape in expected_shapes(SETTINGS, FEATURES).items():
        arrays[name] = random.normal(0.0, 0.01, shape).astype(np.float32)
        if name.startswith("table."):
            arrays[name] *= 1 + np.log1p(counts)[:, None].astype(np.float32)
            arrays[f"{name}.scales"] = ONE_SCALE
    return weights_of(arrays, {"linear": NO_SHIFT, "embeddings": NO_SHIFT})


def learnt(before: Weights, rows: int) -> tuple[Weights, int]:
    """The same model after more rows of the stream, and how many rows of its tables they touched."""
    random = np.random.default_rng(rows)
    touched = np.flatnonzero(_touched(random, rows))
    tables = {}
    for name, table in before.tables.items():
        values = table.values.copy()
        values[touched] += random.normal(0.0, 0.005, (len(touched), values.shape[1])).astype(np.float32)
        tables[name] = Table.of(values)
    dense = {name: array + np.float32(0.001) for name, array in before.dense.items()}
    return Weights(tables=tables, dense=dense), len(touched)


def _touched(random: np.random.Generator, rows: int) -> Array:
    counts = np.zeros(FEATURES.rows, np.int64)
    for field in range(FIELDS):
        values = random.zipf(1.2, rows) % BUCKETS
        counts[1 + field * BUCKETS : 1 + (field + 1) * BUCKETS] = np.bincount(values, minlength=BUCKETS)
    return counts


def best(times: int, call: Callable[[], object]) -> float:
    """The shortest time of several, in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return 1000 * min(taken)


def run(effort: Effort) -> None:
    """Print the tables."""
    before = weights()
    after = {}
    for rows in STREAM_ROWS:
        after[rows], touched = learnt(before, rows)
        print(f"  {rows:,} rows of the stream touch {touched:,} of {FEATURES.rows:,} rows")
    with tempfile.TemporaryDirectory() as name:
        for bits in (None, 16, 8):
            _versions(Path(name) / f"{bits}", bits, before, after, effort.rounds)
        _checkpoints(Path(name) / "checkpoints", effort.rounds)
    _errors(before.tables["embeddings"].values)


def _versions(
    directory: Path, bits: Bits | None, before: Weights, after: Mapping[int, Weights], times: int
) -> None:
    publisher = Publisher(directory, keep=0, quantize=bits, patch=True, whole_every=10**6)

    def publish(one: Weights) -> Publication:
        return publisher.publish(SETTINGS, FEATURES, one, Training(rows=LEARNT_ROWS))

    def publish_whole() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        publish(before)

    def publish_after(one: Weights) -> Publication:
        delete_versions(directory, [number for number in version_directories(directory) if number > 1])
        return publish(one)

    _show(bits, "whole", best(times, publish_whole), directory / "1", times)
    for rows, one in after.items():
        patch_ms = best(times, lambda one=one: publish_after(one))  # type: ignore[misc]
        last = publish_after(one)
        kind = "whole" if last.base is None else "patch"
        _show(bits, f"{rows:,} rows later, {kind}", patch_ms, last.path, times)


def _show(bits: Bits | None, what: str, published_ms: float, path: Path, times: int) -> None:
    megabytes = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    load_ms = best(times, lambda: read_model(path))
    print(
        f"  {bits or 32:2} bits, {what}: {megabytes:5.1f} MB, "
        f"published in {published_ms:4.0f} ms, mapped in {load_ms:5.1f} ms"
    )


def _checkpoints(directory: Path, times: int) -> None:
    state = {"embeddings": np.random.default_rng(0).random((FEATURES.rows, 3 * FACTORS), np.float32)}
    megabytes = state["embeddings"].nbytes / 1e6
    save_ms = best(times, lambda: save_checkpoint(directory, state, {}))
    load_ms = best(times, lambda: load_checkpoint(directory))
    print(
        f"  a checkpoint with Adam's moments: {megabytes:.0f} MB, "
        f"saved at {1000 * megabytes / save_ms:.0f} MB/s, checked at {1000 * megabytes / load_ms:.0f} MB/s"
    )


def _errors(embeddings: Array) -> None:
    """Root mean square error of the weights, against other ways to store them in as many bits."""
    exact = embeddings.astype(np.float64)
    lowest, highest = float(exact.min()), float(exact.max())
    step = (highest - lowest) / 65025
    buckets = np.rint((exact - lowest) / step)
    ways = {
        "16 bits as in Fwumious Wabbit": lowest + buckets.astype(np.float16).astype(np.float64) * step,
        "16 bits, one scale for all": lowest + buckets * step,
        "16 bits, headrace": dequantize_table(quantize_table(Table.of(embeddings), 16)),
        "float16": exact.astype(np.float16).astype(np.float64),
        "8 bits, one scale for all": np.rint(exact / (np.abs(exact).max() / 127))
        * (np.abs(exact).max() / 127),
        "8 bits, headrace": dequantize_table(quantize_table(Table.of(embeddings), 8)),
    }
    size = float(np.sqrt(np.mean(exact**2)))
    for name, found in ways.items():
        error = float(np.sqrt(np.mean((found - exact) ** 2)))
        print(
            f"  {name}: {error / size:.2e} of the weights' own size, "
            f"at most {np.abs(found - exact).max():.1e}"
        )


if __name__ == "__main__":
    run(Effort())
