"""Record batches of a stream, as they come: those of standard input, a file, or a topic's messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.errors import ConfigError, StreamError
from headrace.stream.schema import Schema
from headrace.stream.sources import Pieces, Readable, Source, is_pieces, source_of

try:
    import pyarrow as pa

    from headrace.archive.loading.files import ColumnFile
    from headrace.stream.ahead import Ahead
    from headrace.stream.parser import StreamParser
except ImportError as error:  # as with every package that is not always needed
    raise ConfigError(f"feeding a table needs an extra ({error}): pip install 'headrace[train]'") from None

_BATCHES_AHEAD = 4
_FILE_ROWS = 2**16


class Batches(NamedTuple):
    """Where rows come from.

    Attributes:
        names: The columns.
        batches: The rows; ``StreamError`` where they cannot be read, after what came before was given.
    """

    names: list[str]
    batches: Iterator[pa.RecordBatch]


@contextmanager
def open_stream_batches(file: Readable | Pieces) -> Iterator[Batches]:
    """Read a stream ahead of who takes its batches, whatever its columns are for.

    Args:
        file: Where the stream comes from.

    Raises:
        StreamError: It begins with what is no stream.
    """
    source = source_of(file)
    parser = StreamParser(Schema(fields=()))
    if is_pieces(source):
        source.attach(parser)
    with closing(source):
        while parser.arrow_schema is None:
            count = source.read(parser.room(), None)
            if count:
                parser.filled(count)
            else:
                parser.finish()
        with closing(Ahead(_batches(source, parser), source, _BATCHES_AHEAD)) as batches:
            yield Batches(parser.arrow_schema.names, batches)


def file_batches(file: Path, columns: list[str]) -> Batches:
    """Read a file of columns: Parquet, Arrow or CSV, by its name.

    Raises:
        NotFound: There is no such file.
        InvalidRequest: It is no such file, or cannot be read; of its rows that is raised when they are.
    """
    found = ColumnFile(file)
    there = [name for name in columns if name in found.schema.names]
    return Batches(found.schema.names, found.batches(there, _FILE_ROWS))


def after(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches without their first rows.

    Raises:
        StreamError: There are not so many.
    """
    left = rows
    for batch in batches:
        skipped = min(left, batch.num_rows)
        left -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
    if left:
        raise StreamError(
            f"it has {rows - left} rows, fewer than the {rows} that were taken before the checkpoint; is it "
            "the same stream?",
            row=rows - left,
        )


def _batches(source: Source, parser: StreamParser) -> Iterator[pa.RecordBatch]:
    while True:
        count = source.read(parser.room(), None)
        if count == 0:
            parser.finish()
            return
        if count is not None and (batch := parser.filled(count)) is not None:
            yield batch
