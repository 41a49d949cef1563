"""Windowed features: rows a second that `headrace archive feed` counts and writes, beside reading them alone.

A million clicks of 10,000 keys over three hours, whose popularity falls by Zipf's law; a count and a sum over
one hour, written each minute of the rows' own time to LMDB, synced. One process, on one core, by the clock.
`group_by` is pyarrow's, of the same rows by key and minute: it makes no windows, and stores nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.processes import cores
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.operations.open_archive import open_archive
from headrace.archive.windows.feed import Feed, open_stream_batches
from headrace.base.tensors import Array
from headrace.stream.schema import METADATA_KEY, Field, Schema

ROWS, KEYS, HOURS = 1_000_000, 10_000, 3
EXPONENTS = (1.0, 1.3)
EVERY, WINDOW, KEPT = 60, 3600, 604_800
START = 1_767_225_600
TABLE = "demand"
READ, GROUPED, COUNTED = "read alone", "group_by", "counted alone"
FED, KEPT_TOO, PUT = "feed", "feed, history", "the same rows by put_rows"
SCHEMA = Schema(
    fields=(
        Field(name="label", role="label"),
        Field(name="item", role="categorical", text=True),
        Field(name="timestamp", role="timestamp"),
        Field(name="change", role="dense"),
    )
)


def run(effort: Effort) -> None:
    """Feed a stream of each exponent.

    Args:
        effort: How much measuring is done.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores()[:1])
    try:
        for exponent in EXPONENTS:
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder), exponent, effort)
    finally:
        os.sched_setaffinity(0, before)


def measure(folder: Path, exponent: float, effort: Effort) -> None:
    """Seconds of each side, in turns, for one stream."""
    file = folder / "rows.arrows"
    wanted = made(file, exponent)
    stored: dict[str, int] = {}
    sides: dict[str, Callable[[], float]] = {
        READ: partial(read, file),
        GROUPED: partial(grouped, file),
        COUNTED: partial(counted, file),
        FED: partial(fed, file, wanted, stored, FED),
        KEPT_TOO: partial(fed, file, wanted, stored, KEPT_TOO),
        PUT: lambda: put(stored[FED]),
    }
    counted(file)  # kernels are compiled, or read from where they lie
    seconds = interleaved(sides, effort.rounds)
    lines = [("", "rows/s", "rows written", "written/s", "of group_by's rows/s")]
    for name, taken in seconds.items():
        rows = stored[FED] if name == PUT else stored.get(name, 0)
        lines.append(
            (
                name,
                "" if name == PUT else f"{ROWS / middle(taken):,.0f}",
                f"{rows:,}" if rows else "",
                f"{rows / middle(taken):,.0f}" if rows else "",
                "" if name == PUT else spread(ratios(seconds[GROUPED], taken), 3),
            )
        )
    print(f"Zipf {exponent:g}, {ROWS:,} rows of {KEYS:,} keys over {HOURS} h, every {EVERY} s")
    print_lines(lines)


def made(file: Path, exponent: float) -> dict[str, int]:
    """Write a stream; how many rows each key has in the window that ends with the stream."""
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, KEYS + 1) ** exponent
    items = random.choice(KEYS, ROWS, p=shares / shares.sum())
    times = START + np.sort(random.uniform(0, HOURS * 3600, ROWS))
    columns = {
        "label": pa.array(random.integers(0, 2, ROWS).astype(np.float32)),
        "item": pa.array(np.array([name(one) for one in range(KEYS)])[items]),
        "timestamp": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
        "change": pa.array(random.standard_normal(ROWS).astype(np.float32)),
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: SCHEMA.encode()})
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=8192)
    buckets = (times // EVERY).astype(np.int64)
    last = items[buckets > buckets[-1] - WINDOW // EVERY]
    return {name(one): count for one, count in enumerate(np.bincount(last, minlength=KEYS).tolist())}


def name(number: int) -> str:
    """A key."""
    return f"item {number}"


@contextmanager
def batches(file: Path) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows as the verb reads them."""
    with file.open("rb", buffering=0) as opened, open_stream_batches(opened) as found:
        yield found.batches


def read(file: Path) -> float:
    """Read and check the stream, and do nothing with its rows."""
    began = time.perf_counter()
    with batches(file) as found:
        rows = sum(batch.num_rows for batch in found)
    assert rows == ROWS
    return time.perf_counter() - began


def grouped(file: Path) -> float:
    """Read it, then count and sum by key and minute."""
    began = time.perf_counter()
    with batches(file) as found:
        table = pa.Table.from_batches(list(found))
    minutes = table.column("timestamp").cast(pa.int64()).to_numpy() // (EVERY * 1_000_000)
    table = table.select(["item", "change"]).append_column("minute", pa.array(minutes))
    table = table.group_by(["item", "minute"], use_threads=False).aggregate(
        [("change", "sum"), ("change", "count")]
    )
    assert sum(table.column("change_count").to_pylist()) == ROWS
    return time.perf_counter() - began


@contextmanager
def opened(history: int, *, is_fed: bool = True) -> Iterator[Archive]:
    """An archive with an empty table, with windows or with columns like theirs."""
    windows = {"orders": {"count": True, "seconds": WINDOW}, "open": {"sum": "change", "seconds": WINDOW}}
    settings: dict[str, object] = {"history_seconds": history}
    settings |= {"columns": {"orders": "int64", "open": "float64"}}
    if is_fed:
        settings = {"history_seconds": history, "feed": {"key": "item"}, "windows": windows}
    table = {"queue": {"kind": "memory"}, "store": {"kind": "lmdb"}, "tables": {TABLE: settings}}
    with tempfile.TemporaryDirectory() as folder:
        config = archive_config(table, "archive.toml", Path(folder))
        with open_archive(config, Path(folder)) as archive:
            yield archive


def counted(file: Path) -> float:
    """Read and count it, and write nothing."""
    with opened(0) as archive:
        feed = Feed(archive, TABLE)
        began = time.perf_counter()
        with batches(file) as found:
            for batch in found:
                for _ in feed.counters.take(feed.maker.make(batch, 0, feed.counters)):
                    pass
        return time.perf_counter() - began


def fed(file: Path, wanted: dict[str, int], stored: dict[str, int], side: str) -> float:
    """Feed it; what the table has at the end is checked."""
    with opened(KEPT if side == KEPT_TOO else 0) as archive:
        began = time.perf_counter()
        feed = Feed(archive, TABLE)
        with batches(file) as found:
            for batch in found:
                feed.take(batch)
            feed.finish()
        taken = time.perf_counter() - began
        stored[side] = feed.stored
        values: Array = archive.lookup(TABLE, list(wanted)).values()["orders"]
    assert values.tolist() == list(wanted.values())
    return taken


def put(rows: int) -> float:
    """Store as many rows as the feed did, 5,000 at once, by the call that everybody has."""
    keys = [name(one) for one in range(KEYS)]
    values = {"orders": np.arange(KEYS), "open": np.ones(KEYS)}
    with opened(0, is_fed=False) as archive:
        archive.table_version(TABLE, archive.config.spaces[TABLE].columns or ())
        began = time.perf_counter()
        for start in range(0, rows, 5000):
            part = slice(start % KEYS, start % KEYS + min(5000, rows - start))
            archive.put_rows(TABLE, keys[part], {one: of[part] for one, of in values.items()})
        return time.perf_counter() - began
