"""Read Blocks from a file, a pipe or a socket, synchronously or by a thread that reads ahead.

An error in a stream is raised in its place: all good rows before it are delivered first. Row numbers count
from the stream's first row, however its record batches and Blocks are cut.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

import pyarrow as pa

from headrace.base.errors import ConfigError, StreamError
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import Joiner
from headrace.stream.byte_sources import (
    FileSource,
    Pieces,
    Readable,
    ReadAhead,
    Source,
    is_pieces,
    read_schema,
    source_of,
)
from headrace.stream.schema import Schema

MOST_SAID_TABLE_ROWS = 2**26
"""Maximum rows of tables that a stream's own schema may request: some 5 GB of weights and optimizer state."""

MOST_SAID_WIDTH = 2**14
"""Maximum values per row that a stream's own schema may request: a Block of 2,048 rows then has 128 MB."""


@dataclass(frozen=True)
class ReadSettings:
    """Settings for reading a stream.

    Attributes:
        batch_rows: Maximum rows of a Block.
        skip_rows: Number of rows to skip, to resume after them.
        most_rows: Number of rows wanted, skipped ones included; None for all. Once they have arrived, no
            Block waits for more.
        linger_seconds: Longest time that rows of a slow stream wait for a full Block; then a smaller one is
            delivered. None for no limit, so that Blocks are the same in each run.
        blocks_ahead: Number of Blocks to queue when reading ahead; one more may be read.
        slices: Columns by which metrics are split.
        schema: The Schema of the columns; None for the stream's own.
    """

    batch_rows: int = 2048
    skip_rows: int = 0
    most_rows: int | None = None
    linger_seconds: float | None = 1.0
    blocks_ahead: int = 4
    slices: tuple[str, ...] = ()
    schema: Schema | None = None

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.batch_rows < 1 or self.blocks_ahead < 1 or self.skip_rows < 0:
            raise ConfigError("expected batch_rows and blocks_ahead of 1 or more, and skip_rows of 0 or more")


class Reader:
    """The Blocks of a stream, read on demand.

    A context manager: entering reads the stream's schema, leaving stops reading. It never closes the file.

    Attributes:
        rows: Number of rows of the stream up to the end of the last returned Block, skipped ones included.
        idle_seconds: Total time that the consumer has waited for Blocks.
        stream_bytes: Number of bytes read, which may include bytes of later rows.
    """

    def __init__(self, file: Readable | Pieces, settings: ReadSettings | None = None) -> None:
        """Prepare; nothing is read yet.

        Args:
            file: The stream.
            settings: The settings for reading it.
        """
        self._settings = settings or ReadSettings()
        self._file = file
        self._source: Source = file if is_pieces(file) else FileSource(cast("Readable", file))
        self._parser = StreamParser(self._settings.schema)
        self._joiner: Joiner | None = None
        self._blocks: Iterator[Block] | None = None
        self._ahead: ReadAhead[Block] | None = None
        self._pieces: Pieces | None = None
        self.rows = self._settings.skip_rows
        self.idle_seconds = 0.0
        self.stream_bytes = 0

    @property
    def features(self) -> Features:
        """The layout of the Blocks, which includes the schema; known once entered."""
        if self._joiner is None:
            raise _not_entered()
        return self._joiner.features

    def __enter__(self) -> Self:
        """Read as far as the schema.

        Raises:
            StreamError: The data is not a stream, or its columns do not match the schema.
        """
        self._source = source_of(self._file)
        self._pieces = self._source if is_pieces(self._source) else None
        if self._pieces is not None:
            self._pieces.attach(self._parser)
        try:
            columns = read_schema(self._source, self._parser)
            self._joiner = Joiner(
                laid_out(self._parser.schema, is_given=self._settings.schema is not None),
                self._settings.slices,
            )
            self._joiner.check(columns)
            self._blocks = _Cutter(self._source, self._parser, self._joiner, self._settings).blocks()
        except BaseException as error:
            located = self._located(error) if isinstance(error, StreamError) else None
            self.close()
            if located is None:
                raise
            raise located from error
        return self

    def _located(self, error: StreamError) -> StreamError:
        return error if self._pieces is None else self._pieces.located(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop reading."""
        self.close()

    def __iter__(self) -> Iterator[Block]:
        """Yield the Blocks, each once.

        Raises:
            StreamError: The stream is invalid after the last row yielded.
        """
        while True:
            began = time.perf_counter()
            try:
                block = self._next()
            except StreamError as error:
                if self._pieces is None:
                    raise
                raise self._located(error) from error
            self.idle_seconds += time.perf_counter() - began
            self.stream_bytes = self._parser.position.bytes
            if block is None:
                return
            self.rows = block.first_row + len(block)
            yield block

    def wait(self, seconds: float) -> bool:
        """Wait for the next Block, or the end; return False after the timeout, if a thread reads ahead."""
        began = time.perf_counter()
        is_there = self._ahead is None or self._ahead.wait(seconds)
        self.idle_seconds += time.perf_counter() - began
        return is_there

    def close(self) -> None:
        """Stop reading; the file stays open, and data read ahead is lost."""
        self._source.close()

    def _next(self) -> Block | None:
        if self._blocks is None:
            raise _not_entered()
        return next(self._blocks, None)


def laid_out(schema: Schema | None, *, is_given: bool) -> Features:
    """Lay out the fields of a stream's Schema.

    Args:
        schema: The Schema; None if the stream has none.
        is_given: Whether it was given beside the stream.

    Raises:
        StreamError: The stream's own schema is missing, wrong or too large.
        ConfigError: The given schema is wrong.
    """
    if schema is None:
        raise StreamError("it has no schema; give one with --schema FILE")
    if is_given:
        return Features.of(schema)
    try:
        features = Features.of(schema)
    except ConfigError as error:  # The stream's own schema is wrong, not a setting.
        raise StreamError(error.message) from error
    _check_size(features)
    return features


def _check_size(features: Features) -> None:
    """Refuse a stream's own schema if it requests so much memory that an operator should decide."""
    width = features.slots + features.dense_width
    for what, came, most in (
        ("rows of tables (buckets)", features.rows - 1, MOST_SAID_TABLE_ROWS),
        ("values a row (values, size)", width, MOST_SAID_WIDTH),
    ):
        if came > most:
            raise StreamError(
                f"the schema in its metadata asks for {came} {what}; expected at most {most} in a "
                "stream's own schema; if they are intended, give the schema with --schema FILE"
            )


def _not_entered() -> ConfigError:
    return ConfigError("a Reader must be entered (`with reader:`) before it is used")


class BackgroundReader(Reader):
    """A Reader whose thread reads ahead: parsing and joining overlap with learning."""

    def __enter__(self) -> Self:
        """Read as far as the schema, then start to read ahead; see ``Reader``."""
        super().__enter__()
        self._blocks = self._ahead = ReadAhead(
            self._blocks or iter(()), self._source, self._settings.blocks_ahead
        )
        return self

    def close(self) -> None:
        """Stop the thread; see ``Reader``."""
        if self._ahead is not None:
            self._ahead.close()
        super().close()


class _Cutter:
    """Cuts record batches of any size into Blocks of at most ``batch_rows`` rows."""

    def __init__(self, source: Source, parser: StreamParser, joiner: Joiner, settings: ReadSettings) -> None:
        self._source, self._parser, self._joiner, self._settings = source, parser, joiner, settings
        self._waiting: deque[pa.RecordBatch] = deque()
        self._rows = 0
        self._first_row = 0
        self._due: float | None = None
        self._dry = False

    def blocks(self) -> Iterator[Block]:
        """Yield the Blocks up to the stream's end."""
        try:
            while self._read():
                while self._rows >= self._settings.batch_rows:
                    yield from self._block(self._settings.batch_rows)
                if self._is_last():
                    yield from self._block(self._rows)
                # Only if no bytes are waiting: a slow learner must not cause smaller Blocks.
                if self._dry and self._due is not None and time.monotonic() >= self._due:
                    yield from self._block(self._rows)
        except StreamError:
            yield from self._block(self._rows)
            raise
        yield from self._block(self._rows)
        if self._first_row < self._settings.skip_rows:
            raise StreamError(
                f"it has {self._first_row} rows, fewer than the {self._settings.skip_rows} that were to be "
                "skipped; is it the stream that the checkpoint was learnt from?",
                row=self._first_row,
            )

    def _is_last(self) -> bool:
        most = self._settings.most_rows
        return most is not None and self._rows > 0 and self._first_row + self._rows >= most

    def _read(self) -> bool:
        """Wait for bytes, and parse them; return False at the end of the stream."""
        timeout = None if self._due is None else max(0.0, self._due - time.monotonic())
        count = self._source.read(self._parser.room(), timeout)
        self._dry = count is None
        if count is None:
            return True
        if count == 0:
            self._parser.finish()
            return False
        if (batch := self._parser.filled(count)) is not None:
            self._add(batch)
        return True

    def _add(self, batch: pa.RecordBatch) -> None:
        skipped = min(batch.num_rows, max(0, self._settings.skip_rows - self._first_row))
        self._first_row += skipped
        if skipped == batch.num_rows:
            return
        if not self._rows and self._settings.linger_seconds is not None:
            self._due = time.monotonic() + self._settings.linger_seconds
        self._waiting.append(batch.slice(skipped))
        self._rows += batch.num_rows - skipped

    def _block(self, rows: int) -> Iterator[Block]:
        """Yield the Block of the next rows; if one is invalid, yield the rows before it, then raise."""
        if not rows:
            return
        batches, first_row = self._take(rows), self._first_row
        self._first_row += rows
        try:
            block = self._joiner.join_all(batches, first_row)
        except StreamError as error:
            self._waiting, self._rows = deque(batches), rows
            good = self._take(error.row - first_row)
            self._waiting.clear()
            self._rows = 0
            if good:
                yield self._joiner.join_all(good, first_row)
            raise
        yield block

    def _take(self, rows: int) -> list[pa.RecordBatch]:
        taken = []
        self._rows -= rows
        while rows:
            batch = self._waiting.popleft()
            if batch.num_rows > rows:
                self._waiting.appendleft(batch.slice(rows))
                batch = batch.slice(0, rows)
            taken.append(batch)
            rows -= batch.num_rows
        lingers = self._settings.linger_seconds is not None and self._rows
        self._due = time.monotonic() + (self._settings.linger_seconds or 0.0) if lingers else None
        return taken
