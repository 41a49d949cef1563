"""Prometheus' metrics of what goes on for long beside a server: ``archive feed`` and ``archive fill``."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.stream.schema import METADATA_KEY
from tests.faults.archive_processes import encoding
from tests.streams import schema_of
from tests.waiting import until

START = 1_767_225_600  # 2026-01-01
FEED = """
[tables.demand.feed]
key = "item"
ahead_seconds = 7200
[tables.demand.windows]
orders = { count = true, seconds = 600 }
"""
FILL = """
[spaces.texts]
embedder = "counted"
[embedders.counted]
kind = "model"
model = "encoder"
url = "URL"
"""


@contextmanager
def scraped(
    *words: object, stdin: int = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], dict[str, float]]]]:
    """A verb with a port for Prometheus, and what a scrape of it says."""
    command = [sys.executable, "-m", "headrace", "archive", *map(str, words), "--metrics-port", "0"]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(rb"metrics at (http://127.0.0.1:\d+/metrics)", line):
                    break
            else:
                raise AssertionError("it ended before it said where its metrics are")

            def scrape() -> dict[str, float]:
                with urllib.request.urlopen(found[1].decode(), timeout=20) as answer:
                    lines = answer.read().decode().splitlines()
                return {
                    name: float(value)
                    for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("headrace"))
                }

            yield process, scrape
        finally:
            process.kill()


def orders() -> tuple[pa.Schema, Callable[..., pa.RecordBatch]]:
    schema = schema_of(item={"text": True}, timestamp={"role": "timestamp"}, label={"role": "label"})
    arrow = pa.schema(
        [("item", pa.string()), ("timestamp", pa.timestamp("us", "UTC")), ("label", pa.int8())],
        metadata={METADATA_KEY: schema.encode()},
    )

    def batch(*rows: tuple[str | None, int]) -> pa.RecordBatch:
        items, seconds = zip(*rows, strict=True)
        times = pa.array([(START + one) * 10**6 for one in seconds], pa.timestamp("us", "UTC"))
        return pa.record_batch(
            [pa.array(items, pa.string()), times, pa.array([1] * len(rows), pa.int8())], schema=arrow
        )

    return arrow, batch


@pytest.mark.rest
def test_a_feed_tells_what_it_takes_and_refuses_and_how_far_it_is_behind(tmp_path: Path) -> None:
    settings = tmp_path / "archive.toml"
    settings.write_text(FEED)
    arrow, batch = orders()
    words = ("feed", "demand", "--archive", settings)
    with scraped(*words, stdin=subprocess.PIPE) as (process, scrape):
        assert process.stdin is not None
        with pa.ipc.new_stream(process.stdin, arrow) as writer:
            writer.write_batch(batch(*[("a", 0), ("b", 10)] * 10, (None, 3000)))  # enough to set the clock
            process.stdin.flush()
            rows = 'headrace_archive_feed_rows_total{table="demand"}'
            until(lambda: scrape()[rows] == 21)
            before = scrape()
            writer.write_batch(batch(("c", 100), ("d", 2990), ("e", 3010)))
            process.stdin.flush()
            until(lambda: scrape()[rows] == 24)
            now = scrape()
    found = {
        name.partition("{")[0].removeprefix("headrace_archive_feed_"): value for name, value in now.items()
    }
    assert (found["keyless_rows_total"], found["late_rows_total"], found["too_late_rows_total"]) == (1, 1, 1)
    assert (found["ahead_rows_total"], found["held_rows"], found["stored_rows_total"] > 0) == (0, 0, True)
    assert found["behind_seconds"] > 300 * 86_400  # the rows are of the first of January
    assert all(now[name] >= value for name, value in before.items() if name.endswith("_total{"))


@pytest.mark.rest
def test_a_filler_tells_what_it_fills_and_what_waits(tmp_path: Path) -> None:
    settings = tmp_path / "archive.toml"
    with encoding(tmp_path) as encoder:
        settings.write_text(FILL.replace("URL", encoder.url))
        with scraped("fill", "--archive", settings) as (_, scrape), open_archive_file(settings) as archive:
            archive.want("texts", ["a", "b", "c"])
            until(lambda: scrape()['headrace_archive_filled_keys_total{space="texts"}'] == 3)
            until(lambda: scrape()["headrace_archive_queued_keys"] == 0)
