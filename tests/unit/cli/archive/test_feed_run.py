"""When a feed saves its state: in time, also while no rows arrive, by a clock that the test controls."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headrace.archive.windows.feed import Batches, Feed
from headrace.cli.archive.feed_run import FeedRun
from headrace.training.running.checkpoint import load_checkpoint
from headrace.training.running.loop import Interruptions
from tests.unit.archive.filling_parts import open_parts

START = 1_700_000_000_000_000
TABLE = {
    "feed": {"key": "item", "every_seconds": 60},
    "windows": {"orders": {"count": True, "seconds": 3600}},
}


def rows_of(count: int) -> pa.RecordBatch:
    times = pa.array(range(START, START + count), pa.timestamp("us", "UTC"))
    return pa.record_batch({"item": ["a"] * count, "timestamp": times})


class SlowStream:
    """Three rows after 10 s, two after 300 s, and the end after 400 s, by a clock of its own.

    Attributes:
        clock: The time in seconds; it passes only while something is waited for.
        waits: The timeouts of the waits.
        saved: At each arrival, the rows of the newest checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self.clock = 0.0
        self.waits: list[float] = []
        self.saved: list[int] = []
        self._directory = directory
        self._coming = [(10.0, 3), (300.0, 2), (400.0, 0)]

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        arrival = self._coming[0][0]
        is_there = arrival <= self.clock + seconds
        self.clock = max(self.clock, arrival) if is_there else self.clock + seconds
        return is_there

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._coming:
            arrival, count = self._coming.pop(0)
            self.clock = max(self.clock, arrival)
            self.saved.append(saved_rows(self._directory))
            if count:
                yield rows_of(count)


def saved_rows(directory: Path) -> int:
    found = load_checkpoint(directory)
    return 0 if found is None else msgspec.convert(found.meta["position"], dict[str, int])["rows"]


def run(tmp_path: Path, checkpoint: Path | None, every_seconds: float) -> SlowStream:
    stream = SlowStream(tmp_path / "saved")
    options = argparse.Namespace(
        table="demand", checkpoint=checkpoint, checkpoint_every_seconds=every_seconds, json=False
    )
    with open_parts(tmp_path / "archive", "lmdb", {"dimension": 4}, tables={"demand": TABLE}) as archive:
        fed = FeedRun(Feed(archive, "demand"), Interruptions(), None, options, now=lambda: stream.clock)
        assert fed.run(Batches(["item", "timestamp"], stream.batches(), stream.wait)) == 0
    return stream


def test_rows_before_a_silence_are_saved_in_time_and_then_nothing_is_waited_for(tmp_path: Path) -> None:
    stream = run(tmp_path, tmp_path / "saved", 60.0)
    assert stream.saved == [0, 3, 5]
    assert stream.waits == [50.0]
    assert saved_rows(tmp_path / "saved") == 5


def test_rows_that_arrive_in_time_are_saved_together(tmp_path: Path) -> None:
    stream = run(tmp_path, tmp_path / "saved", 350.0)
    assert stream.saved == [0, 0, 5]
    assert stream.waits == [340.0, 50.0]


@pytest.mark.parametrize(("is_saved", "every_seconds"), [(True, 0.0), (False, 60.0)])
def test_without_an_interval_or_a_directory_nothing_is_waited_for(
    tmp_path: Path, is_saved: bool, every_seconds: float
) -> None:
    stream = run(tmp_path, tmp_path / "saved" if is_saved else None, every_seconds)
    assert (stream.saved, stream.waits) == ([0, 0, 0], [])
    assert saved_rows(tmp_path / "saved") == (5 if is_saved else 0)
