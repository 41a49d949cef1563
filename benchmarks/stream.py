"""A stream's rows to Blocks: formats, reading in the background, joining, and what it all is in training."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv
from pyarrow import parquet

from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.ctr.factory import create
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import Joiner
from headrace.stream.block_reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.click_generator import GeneratorSettings, generate_batches, schema_of
from headrace.stream.encode import EncodeSettings, encode

ROWS = 200_000
FEW_ROWS = 10_000
"""Of the formats that are read value by value in Python."""

BATCH_ROWS = 2048
KINDS = ("lr", "deepfm")

Make = Callable[[], Iterator[Block]]


class Turn(NamedTuple):
    """One pass over the rows.

    Attributes:
        seconds: How long it took.
        cpu_seconds: What the process computed meanwhile.
        rows: How many rows there were.
        logloss: Of the model, if there was one.
        idle: The share of the time in which the model waited.
    """

    seconds: float
    cpu_seconds: float
    rows: int
    logloss: float = 0.0
    idle: float = 0.0


class Rows:
    """The same rows as files of several formats.

    Attributes:
        features: Their layout.
        paths: The files.
        table: They themselves.
        batches: They in memory.
    """

    def __init__(self, folder: Path) -> None:
        """Write them all.

        Args:
            folder: Where.
        """
        settings = GeneratorSettings(rows=ROWS, seed=1)
        self.schema = schema_of(settings)
        self.features = Features.of(self.schema)
        batches = list(generate_batches(settings))
        self.table = pa.Table.from_batches(batches)
        self.batches = self.table.to_batches(BATCH_ROWS)
        self.paths = {
            name: folder / name for name in ("arrow", "arrow-lz4", "parquet", "csv", "vw", "msgpack")
        }
        for name, compression in (("arrow", None), ("arrow-lz4", "lz4")):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_stream(str(self.paths[name]), batches[0].schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        parquet.write_table(self.table, self.paths["parquet"])
        arrow_csv.write_csv(self.table, self.paths["csv"])
        self._write_rows()

    def _write_rows(self) -> None:
        names = self.table.column_names
        label = self.schema.of("label")[0].name
        categories = {field.name for field in self.schema.of("categorical")}
        numbers = {field.name for field in self.schema.of("dense")}
        encoder = msgspec.msgpack.Encoder()
        with self.paths["vw"].open("w") as vw, self.paths["msgpack"].open("wb") as packed:
            for row in zip(
                *(column.to_pylist() for column in self.table.slice(0, FEW_ROWS).columns), strict=True
            ):
                packed.write(encoder.encode(encoder.encode(row)))
                values = dict(zip(names, row, strict=True))
                texts = [f"|{name} {values[name]}" for name in names if name in categories]
                dense = " ".join(f"{name}:{values[name]:.6g}" for name in names if name in numbers)
                vw.write(f"{1 if values[label] else -1} {' '.join(texts)} |dense {dense}\n")

    # ---- Blocks of each format ---------------------------------------------------------------------

    def stream(self, name: str = "arrow", kind: type[Reader] = Reader) -> Iterator[Block]:
        """From a stream."""
        with self.paths[name].open("rb") as file, kind(file, ReadSettings(batch_rows=BATCH_ROWS)) as reader:
            yield from reader

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Block]:
        """From record batches of any source: the same joining as a stream's."""
        joiner = Joiner(self.features)
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield joiner.join(batch.slice(start, BATCH_ROWS))

    def parquet(self) -> Iterator[Block]:
        """From Parquet."""
        with parquet.ParquetFile(self.paths["parquet"]) as file:
            yield from self.joined(file.iter_batches(8192, use_threads=False))

    def csv(self) -> Iterator[Block]:
        """From CSV, by Arrow's own parser, which is told the types: about the fastest there is."""
        types = arrow_csv.ConvertOptions(column_types=self.table.schema)
        options = arrow_csv.ReadOptions(use_threads=False)
        with arrow_csv.open_csv(self.paths["csv"], options, convert_options=types) as batches:
            yield from self.joined(iter(batches))

    def vw(self) -> Iterator[Block]:
        """From VW's text, as `headrace stream encode` reads it."""
        encoded = encode(EncodeSettings("vw"), self.paths["vw"])
        joiner = Joiner(Features.of(encoded.schema))
        for batch in encoded.batches:
            yield joiner.join(batch)

    def msgpack(self) -> Iterator[Block]:
        """From msgpack: one array a row."""
        data, decoder = self.paths["msgpack"].read_bytes(), msgspec.msgpack.Decoder()
        schema, at = self.table.schema, 0
        rows: list[Sequence[object]] = []
        while at < len(data):
            start, size = _framed(data, at)
            rows.append(decoder.decode(memoryview(data)[start : start + size]))
            at = start + size
            if len(rows) == BATCH_ROWS or at == len(data):
                columns = [
                    pa.array(one, field.type)
                    for one, field in zip(zip(*rows, strict=True), schema, strict=True)
                ]
                yield from self.joined(iter([pa.record_batch(columns, schema)]))
                rows = []

    def per_column(self) -> Iterator[Block]:
        """From record batches in memory, joined by NumPy column by column."""
        categorical, numeric = self.features.categorical, self.features.numeric
        starts = self.features.table_starts.astype(np.uint32)
        label = self.schema.of("label")[0].name
        for batch in self.batches:
            rows = [
                _checked(batch.column(field.name).to_numpy(), field.buckets) + first
                for field, first in zip(categorical, starts, strict=True)
            ]
            numbers = [_finite(batch.column(field.name).to_numpy()) for field in numeric]
            yield Block(
                indices=np.stack(rows, axis=1),
                dense=np.stack(numbers, axis=1),
                labels=batch.column(label).to_numpy().astype(np.float32),
            )

    def piped(self, kind: type[Reader]) -> Iterator[Block]:
        """From a pipe that another thread writes to."""
        reading, writing = os.pipe()

        def write() -> None:
            with os.fdopen(writing, "wb") as sink:
                sink.write(self.paths["arrow"].read_bytes())

        thread = threading.Thread(target=write)
        thread.start()
        with os.fdopen(reading, "rb", 0) as file, kind(file, ReadSettings(batch_rows=BATCH_ROWS)) as reader:
            yield from reader
        thread.join()


def _framed(data: bytes, at: int) -> tuple[int, int]:
    """Where a msgpack `bin` begins, and its length: the frame around a row."""
    head = data[at] - 0xC4
    width = 1 << head
    return at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big")


def _checked(values: npt.NDArray[np.uint32], buckets: int) -> npt.NDArray[np.uint32]:
    if len(values) and values.max() >= buckets:
        raise ValueError("bucket")
    return values


def _finite(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise ValueError("number")
    return values


def passed(blocks: Make) -> Turn:
    """Take all Blocks."""
    began, cpu = time.perf_counter(), time.process_time()
    rows = sum(len(block) for block in blocks())
    return Turn(time.perf_counter() - began, time.process_time() - cpu, rows)


def trained(rows: Rows, kind: str, blocks: Make) -> Turn:
    """Learn from all Blocks, one pass."""
    model = create(ModelSettings(kind=kind), rows.features)
    began, cpu, total, waited = time.perf_counter(), time.process_time(), 0.0, 0.0
    source = blocks()
    while True:
        asked = time.perf_counter()
        block = next(source, None)
        waited += time.perf_counter() - asked
        if block is None:
            break
        predicted = np.clip(model.learn(block), 1e-7, 1 - 1e-7)
        total -= float(np.log(np.where(block.labels > 0, predicted, 1 - predicted)).sum())
    seconds = time.perf_counter() - began
    return Turn(seconds, time.process_time() - cpu, ROWS, total / ROWS, waited / seconds)


def _formats(rows: Rows, rounds: int) -> None:
    makes: dict[str, Make] = {
        "arrow": rows.stream,
        "arrow-lz4": lambda: rows.stream("arrow-lz4"),
        "parquet": rows.parquet,
        "csv": rows.csv,
        "msgpack": rows.msgpack,
        "vw": rows.vw,
    }
    turns = interleaved({name: lambda make=make: passed(make) for name, make in makes.items()}, rounds)
    lines: list[Sequence[str]] = [
        ("to Blocks, one thread", "µs CPU/row", "rows/s", "bytes/row", "times arrow's")
    ]
    base = [turn.cpu_seconds / turn.rows for turn in turns["arrow"]]
    for name in makes:
        cpu = [turn.cpu_seconds / turn.rows for turn in turns[name]]
        lines.append(
            (
                name,
                f"{middle(cpu) * 1e6:.2f}",
                f"{1 / middle(cpu):,.0f}",
                f"{rows.paths[name].stat().st_size / turns[name][0].rows:.0f}",
                f"{middle(ratios(cpu, base)):.1f}",
            )
        )
    print_lines(lines)


def _joining(rows: Rows, rounds: int) -> None:
    turns = interleaved(
        {
            "joined": lambda: passed(lambda: rows.joined(iter(rows.batches))),
            "per column": lambda: passed(rows.per_column),
        },
        rounds,
    )
    ratio = ratios(*([turn.cpu_seconds for turn in turns[name]] for name in ("per column", "joined")))
    cost = middle([turn.cpu_seconds for turn in turns["joined"]]) / ROWS * 1e6
    print(f"joining alone: {cost:.3f} µs a row; per column with NumPy {spread(ratio)} times that")


def _training(rows: Rows, kind: str, rounds: int) -> None:
    makes: dict[str, Make] = {
        "arrow, in line": rows.stream,
        "arrow, background": lambda: rows.stream(kind=BackgroundReader),
        "pipe, in line": lambda: rows.piped(Reader),
        "pipe, background": lambda: rows.piped(BackgroundReader),
        "csv, in line": rows.csv,
    }
    turns = interleaved(
        {name: lambda make=make: trained(rows, kind, make) for name, make in makes.items()}, rounds
    )
    lines: list[Sequence[str]] = [(f"{kind}, one pass", "rows/s", "CPU µs/row", "idle", "logloss")]
    for name, of in turns.items():
        lines.append(
            (
                name,
                f"{ROWS / middle([turn.seconds for turn in of]):,.0f}",
                f"{middle([turn.cpu_seconds for turn in of]) / ROWS * 1e6:.2f}",
                f"{middle([turn.idle for turn in of]):.0%}",
                f"{of[0].logloss:.5f}",
            )
        )
    print_lines(lines)
    seconds = {name: [turn.seconds for turn in of] for name, of in turns.items()}
    cpu = {name: [turn.cpu_seconds for turn in of] for name, of in turns.items()}
    more = ratios(cpu["csv, in line"], cpu["arrow, in line"])
    same = math.isclose(turns["csv, in line"][0].logloss, turns["arrow, in line"][0].logloss, rel_tol=1e-3)
    verdict(f"{kind}: binary against CSV ≥ 1.25 at equal loss", same and middle(more) >= 1.25, spread(more))
    for source in ("arrow", "pipe"):
        gain = ratios(seconds[f"{source}, in line"], seconds[f"{source}, background"])
        print(f"{kind}: background against in line, {source}: {spread(gain)} times the rows/s")


def run(effort: Effort) -> None:
    """Measure all, in turns.

    Args:
        effort: How many turns.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(Path(folder))
        for make in (rows.stream, rows.csv):
            passed(make)  # Compile first.
        _formats(rows, min(3, effort.rounds))
        _joining(rows, effort.rounds)
        for kind in KINDS:
            first = next(rows.stream())
            create(ModelSettings(kind=kind), rows.features).learn(first)
            _training(rows, kind, effort.rounds)
