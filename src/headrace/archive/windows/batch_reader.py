"""Reads record batches of a stream as they arrive: from standard input, a file, or a topic's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from headrace.base.errors import HeadraceError, StreamError, needs_extra
from headrace.stream.byte_sources import Pieces, Readable, Source, is_pieces, read_schema, source_of
from headrace.stream.schema import Schema

try:
    import pyarrow as pa

    from headrace.archive.tables.file_readers import ColumnFile
    from headrace.stream.arrow_ipc_parser import StreamParser
    from headrace.stream.byte_sources import Ahead
except ImportError as error:  # as with every optional package
    raise needs_extra("feeding a table", "train", error) from error

_BATCHES_AHEAD = 2
_ROWS_AT_ONCE = 2**16


class Batches(NamedTuple):
    """A source of rows.

    Attributes:
        names: Names of the columns.
        batches: Batches of rows. On invalid rows the earlier ones are yielded first, then ``StreamError`` is
            raised.
        wait: Waits for the next batch, or the end, for a number of seconds; returns False after that time.
    """

    names: list[str]
    batches: Iterator[pa.RecordBatch]
    wait: Callable[[float], bool]


@contextmanager
def open_stream_batches(file: Readable | Pieces) -> Iterator[Batches]:
    """Read all columns of a stream, ahead of its consumer.

    Args:
        file: Source of the stream.

    Raises:
        StreamError: The source does not begin with a stream.
    """
    source = source_of(file)
    parser = StreamParser(Schema(fields=()))
    if is_pieces(source):
        source.attach(parser)
    with closing(source):
        columns = read_schema(source, parser)
        with closing(Ahead(_batches(source, parser), source, _BATCHES_AHEAD)) as batches:
            yield Batches(columns.names, batches, batches.wait)


def file_batches(file: ColumnFile, columns: list[str]) -> Batches:
    """Read some columns of a file; the batches raise ``InvalidRequest`` if its rows cannot be read."""
    there = [name for name in columns if name in file.schema.names]
    return Batches(file.schema.names, _together(file.batches(there, _ROWS_AT_ONCE)), lambda _: True)


def after(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first ``rows`` rows.

    Raises:
        StreamError: There are fewer rows than that.
    """
    left = rows
    for batch in batches:
        skipped = min(left, batch.num_rows)
        left -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
    if left:
        raise StreamError(
            f"it has {rows - left} rows, fewer than the {rows} that were read before the checkpoint; is it "
            "the same stream?",
            row=rows - left,
        )


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches into large ones, so that a key is written once for several buckets."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS_AT_ONCE:
                yield from _joined(waiting)
                waiting, rows = [], 0
    except HeadraceError:
        yield from _joined(waiting)
        raise
    yield from _joined(waiting)


def _batches(source: Source, parser: StreamParser) -> Iterator[pa.RecordBatch]:
    """Yield the stream's rows, joining batches that arrived together, without waiting for more."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        while count := _read(source, parser, waits=not waiting):
            if count > 0 and (batch := parser.filled(count)) is not None:
                waiting.append(batch)
                rows += batch.num_rows
            if waiting and (count < 0 or rows >= _ROWS_AT_ONCE):
                yield from _joined(waiting)
                waiting, rows = [], 0
        parser.finish()
    except StreamError:
        yield from _joined(waiting)
        raise
    yield from _joined(waiting)


def _read(source: Source, parser: StreamParser, *, waits: bool) -> int:
    """Read some bytes and return their number; 0 at the end, -1 if there are none now."""
    count = source.read(parser.room(), None if waits else 0.0)
    return -1 if count is None else count


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
