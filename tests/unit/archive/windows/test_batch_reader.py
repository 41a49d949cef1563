"""Batches of a stream, as a feed takes them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.archive.tables.file_readers import ColumnFile
from headrace.archive.windows.batch_reader import after, file_batches, open_stream_batches
from headrace.base.errors import InvalidRequest, StreamError
from tests.streams import batch_of, stream_of

ROWS = batch_of(item=[f"{row}" for row in range(100)], x=list(range(100)))


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row for batch in batches for row in batch["x"].to_pylist()]


def test_what_has_come_together_is_given_together() -> None:
    with open_stream_batches(io.BytesIO(stream_of(ROWS, rows=7))) as (names, batches, _):
        assert names == ["item", "x"]
        given = list(batches)
    assert [batch.num_rows for batch in given] == [100]
    assert rows_of(iter(given)) == list(range(100))


def test_rows_of_a_slow_pipe_are_given_as_they_come() -> None:
    content = stream_of(ROWS, rows=50)
    listen, tell = os.pipe()
    with os.fdopen(listen, "rb", buffering=0) as file, os.fdopen(tell, "wb", buffering=0) as pipe:
        half = content[: len(content) * 2 // 3]  # one of the two batches, and a part of the other
        pipe.write(half)
        with open_stream_batches(file) as (_, batches, wait):
            assert wait(60.0)
            assert next(batches).num_rows == 50
            assert not wait(0.0)
            pipe.write(content[len(half) :])
            pipe.close()
            assert rows_of(batches) == list(range(50, 100))


def test_what_came_before_a_cut_is_given_first() -> None:
    content = stream_of(ROWS, rows=50)
    given = []
    with open_stream_batches(io.BytesIO(content[:-100])) as (_, batches, _wait):
        given.append(next(batches))
        with pytest.raises(StreamError, match="it is cut within a message"):
            next(batches)
    assert rows_of(iter(given)) == list(range(50))


def test_small_batches_of_a_file_are_given_together(tmp_path: Path) -> None:
    """What is written is what has changed by the end of a batch: small ones have a key written more often."""
    (tmp_path / "rows.arrows").write_bytes(stream_of(ROWS, rows=7))
    names, batches, wait = file_batches(ColumnFile(tmp_path / "rows.arrows"), ["x", "not there"])
    assert names == ["item", "x"]
    assert wait(0.0)
    given = list(batches)
    assert [batch.num_rows for batch in given] == [100]
    assert rows_of(iter(given)) == list(range(100))


def test_what_came_before_the_damage_of_a_file_is_given_first(tmp_path: Path) -> None:
    (tmp_path / "rows.arrows").write_bytes(stream_of(ROWS, rows=25)[:-100])
    _, batches, _ = file_batches(ColumnFile(tmp_path / "rows.arrows"), ["x"])
    given = [next(batches)]
    with pytest.raises(InvalidRequest):
        next(batches)
    assert rows_of(iter(given)) == list(range(75))


@pytest.mark.parametrize("skipped", [0, 1, 49, 50, 51, 100])
def test_rows_that_were_taken_are_passed_over(skipped: int) -> None:
    batches = [ROWS.slice(0, 50), ROWS.slice(50)]
    assert rows_of(after(iter(batches), skipped)) == list(range(skipped, 100))


def test_a_stream_shorter_than_what_was_taken_is_another_one() -> None:
    with pytest.raises(StreamError, match="it has 100 rows, fewer than the 101 that were read"):
        list(after(iter([ROWS]), 101))
