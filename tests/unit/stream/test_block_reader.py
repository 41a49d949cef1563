"""Blocks of one size from any file, in line and in the background; errors where they belong; no hanging."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigError, StreamError
from headrace.stream.block import Block
from headrace.stream.block_reader import BackgroundReader, Reader, ReadSettings
from tests.streams import CLICKS, batch_of, clicks, schema_of, stream_of
from tests.waiting import seconds_left

KINDS = (Reader, BackgroundReader)
NUMBERS = schema_of(a={"keys": "bucket", "buckets": 1000}, y={"role": "label"})
DATA = stream_of(batch_of(a=np.arange(1000), y=np.zeros(1000)), NUMBERS, rows=170)


def read(kind: type[Reader], data: bytes, **settings: Any) -> list[Block]:
    with kind(io.BytesIO(data), ReadSettings(**settings)) as reader:
        return list(reader)


def values(blocks: list[Block]) -> list[int]:
    return [value - 1 for block in blocks for value in block.indices[:, 0].tolist()]


@contextmanager
def pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    """A pipe's two ends."""
    ends = os.pipe()
    with os.fdopen(ends[0], "rb", 0) as reading, os.fdopen(ends[1], "wb", 0) as writing:
        yield reading, writing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_rows", [1, 7, 170, 400, 1000, 5000])
def test_blocks_have_one_size_however_batches_are_cut(kind: type[Reader], batch_rows: int) -> None:
    blocks = read(kind, DATA, batch_rows=batch_rows)
    assert values(blocks) == list(range(1000))
    assert [block.first_row for block in blocks] == list(range(0, 1000, batch_rows))
    assert {len(block) for block in blocks[:-1]} <= {batch_rows}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip_rows", [0, 1, 170, 555, 1000])
def test_a_resumed_stream_goes_on_where_it_was(kind: type[Reader], skip_rows: int) -> None:
    with kind(io.BytesIO(DATA), ReadSettings(batch_rows=100, skip_rows=skip_rows)) as reader:
        assert reader.rows == skip_rows
        blocks = list(reader)
    assert values(blocks) == list(range(skip_rows, 1000))
    assert [block.first_row for block in blocks] == list(range(skip_rows, 1000, 100))
    assert (reader.rows, reader.stream_bytes) == (1000, len(DATA))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_shorter_than_what_is_skipped_is_another_stream(kind: type[Reader]) -> None:
    with pytest.raises(StreamError, match="1000 rows, fewer than the 1001"):
        read(kind, DATA, skip_rows=1001)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_by_its_descriptor(kind: type[Reader], tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(DATA)
    with path.open("rb") as file, kind(file) as reader:
        assert values(list(reader)) == list(range(1000))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_before_a_wrong_one_are_delivered_first(kind: type[Reader]) -> None:
    labels = np.zeros(1000)
    labels[777] = np.nan
    data = stream_of(batch_of(a=np.arange(1000), y=labels), NUMBERS, rows=300)
    got: list[Block] = []
    with (
        pytest.raises(StreamError, match="row 777, field 'y': expected 0 or 1, got nan") as error,
        kind(io.BytesIO(data), ReadSettings(batch_rows=500)) as reader,
    ):
        got.extend(reader)
    assert error.value.row == 777
    assert values(got) == list(range(777))
    assert [len(block) for block in got] == [500, 277]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_before_a_cut_are_delivered_first(kind: type[Reader]) -> None:
    got: list[Block] = []
    with (
        pytest.raises(StreamError, match="cut within a message") as error,
        kind(io.BytesIO(DATA[:-200])) as reader,
    ):
        got.extend(reader)
    assert error.value.row == 850
    assert values(got) == list(range(850))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_does_not_fit_is_refused_on_entering(kind: type[Reader]) -> None:
    with (
        pytest.raises(StreamError, match="no such column"),
        kind(io.BytesIO(DATA), ReadSettings(schema=CLICKS)),
    ):
        pass
    with pytest.raises(StreamError, match="got text"), kind(io.BytesIO(b"a,b\n1,2\n")):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_entered_before_it_is_used(kind: type[Reader]) -> None:
    with pytest.raises(ConfigError, match="entered"):
        next(iter(kind(io.BytesIO(DATA))))
    with pytest.raises(ConfigError, match="batch_rows"):
        ReadSettings(batch_rows=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_give_the_same_blocks(kind: type[Reader]) -> None:
    data = stream_of(clicks(2000), CLICKS, rows=333, emit_dictionary_deltas=True)
    (whole,) = read(Reader, data, batch_rows=2000, slices=("site",))
    parts = read(kind, data, batch_rows=77, slices=("site",))
    for name in ("indices", "dense", "labels"):
        assert np.array_equal(np.concatenate([getattr(block, name) for block in parts]), getattr(whole, name))
    codes = np.concatenate([block.slices["site"].codes for block in parts])
    assert np.array_equal(codes, whole.slices["site"].codes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_stream_s_rows_do_not_wait_for_a_full_block(kind: type[Reader]) -> None:
    settings, got = ReadSettings(batch_rows=10_000, linger_seconds=0.5), list[Block]()
    with pipe() as (reading, writing):
        writing.write(DATA[:-8])  # The stream has not ended.
        with kind(reading, settings) as reader:
            while sum(map(len, got)) < 1000:  # In one block, unless they are read slowly.
                got.append(next(iter(reader)))
            assert values(got) == list(range(1000))
            assert reader.idle_seconds > 0.04


def test_without_lingering_a_block_waits_for_its_rows() -> None:
    with pipe() as (reading, writing):
        cut = len(DATA) * 2 // 3
        writing.write(DATA[:cut])
        settings = ReadSettings(batch_rows=1000, linger_seconds=None)
        late = threading.Timer(0.2, lambda: (writing.write(DATA[cut:]), writing.close()))
        with BackgroundReader(reading, settings) as reader:
            late.start()
            assert [len(block) for block in reader] == [1000]
        late.join()


def test_waiting_for_a_block_neither_takes_nor_loses_it() -> None:
    start = len(stream_of(batch_of(a=np.arange(0), y=np.zeros(0)), NUMBERS)) - 8  # the schema, not the end
    cut = len(DATA) // 2
    with pipe() as (reading, writing):
        writing.write(DATA[:start])
        with BackgroundReader(reading, ReadSettings(batch_rows=170)) as reader:
            assert not reader.wait(0.0)
            blocks = iter(reader)
            writing.write(DATA[start:cut])
            assert reader.wait(600.0)
            assert reader.wait(0.0)
            first = next(blocks)
            writing.write(DATA[cut:])
            writing.close()
            assert values([first, *blocks]) == list(range(1000))
            assert reader.wait(0.0)
            assert next(blocks, None) is None


def test_a_reader_without_a_thread_does_not_wait() -> None:
    with pipe() as (reading, writing):
        writing.write(DATA)
        with Reader(reading) as reader:
            assert reader.wait(0.0)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "headrace-reader"]


@pytest.mark.parametrize("batch_rows", [1, 10_000])
def test_closing_early_never_hangs(batch_rows: int) -> None:
    """Whether the thread waits for a place (a Block is one row) or for bytes (no Block is ever full)."""
    with pipe() as (reading, writing):
        writing.write(DATA[:-8])
        settings = ReadSettings(batch_rows=batch_rows, linger_seconds=None)
        with BackgroundReader(reading, settings):
            pass  # A close that hangs ends the test by its time limit.
        assert not threads()


def test_closing_twice_and_leaving_by_an_error_leave_nothing_behind(tmp_path: Path) -> None:
    """Descriptors are counted in a process of their own: others come and go in that of the tests."""
    (tmp_path / "rows").write_bytes(DATA)
    program = """
        import os, sys, threading
        from headrace.stream.block_reader import BackgroundReader, ReadSettings

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        file = open(sys.argv[1], "rb")
        before = descriptors()
        try:
            with BackgroundReader(file, ReadSettings(batch_rows=1)) as reader:
                next(iter(reader))
                made = descriptors() - before
                reader.close()
                raise ZeroDivisionError
        except ZeroDivisionError:
            print(made, descriptors() - before, [one.name for one in threading.enumerate()])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 0 ['MainThread']\n"


def test_only_so_many_blocks_are_made_ahead() -> None:
    with BackgroundReader(io.BytesIO(DATA), ReadSettings(batch_rows=10, blocks_ahead=3)) as reader:
        deadline = time.monotonic() + seconds_left()
        while reader._ahead._made.qsize() < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reader._ahead._made.qsize() == 3
        assert values(list(reader)) == list(range(1000))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            {"buckets": 2**31},
            r"asks for 2147483648 rows of tables .*; expected at most 67108864 .*--schema FILE",
        ),
        ({"values": 4096, "pooling": "sum"}, None),
        (
            {"role": "vector", "size": 65536},
            r"asks for 65536 values a row .*; expected at most 16384 .*--schema FILE",
        ),
    ],
)
def test_how_much_memory_a_stream_s_own_schema_may_ask_for(
    setting: dict[str, object], said: str | None
) -> None:
    schema = schema_of(label={"role": "label"}, a=setting)
    kind = pa.list_(pa.float32(), 65536) if "size" in setting else pa.int64()
    batch = batch_of(label=[1], a=pa.nulls(1, kind))
    data = stream_of(batch, schema)
    if said is None:
        with Reader(io.BytesIO(data)) as reader:
            assert len(list(reader)) == 1
        return
    with pytest.raises(StreamError, match=said), Reader(io.BytesIO(data)):
        pass
    with Reader(io.BytesIO(data), ReadSettings(schema=schema)) as reader:  # Who gives it knows.
        assert reader.features.schema == schema
