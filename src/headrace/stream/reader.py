"""From a file, a pipe or a socket to Blocks of one size, in line or by a thread that reads ahead.

What is wrong with a stream is raised where it belongs: all good rows before it are delivered first. A row has
one number, from the stream's first one, however its record batches and Blocks are cut.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

import pyarrow as pa

from headrace.errors import ConfigError, StreamError
from headrace.stream.ahead import Ahead
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.stream.joining import Joiner
from headrace.stream.parser import StreamParser
from headrace.stream.schema import Schema
from headrace.stream.sources import FileSource, Pieces, Readable, Source, is_pieces, read_schema, source_of

MOST_SAID_TABLE_ROWS = 2**26
"""How many rows of tables a stream's own schema may ask for: some 5 GB of weights and optimizers."""

MOST_SAID_WIDTH = 2**14
"""How many values of a row it may ask for: a Block of 2,048 rows then has 128 MB."""


@dataclass(frozen=True)
class ReadSettings:
    """How a stream is read.

    Attributes:
        batch_rows: Rows of a Block.
        skip_rows: How many rows to pass over, to resume behind them.
        most_rows: How many rows are wanted, those that are passed over among them; a Block that would wait
            for more is delivered. None for all that come.
        linger_seconds: How long a row waits for its Block to fill up when the stream is slow; then a smaller
            one is delivered. None to wait as long as it takes, so that Blocks are the same in each run.
        blocks_ahead: How many Blocks are made ahead of who takes them.
        slices: Columns by which metrics are split.
        schema: What the columns are; what the stream itself says if None.
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
            raise ConfigError("batch_rows and blocks_ahead are 1 or more, skip_rows is 0 or more")


class Reader:
    """Blocks of a stream, read by whoever asks for the next one.

    A context manager: entering reads the stream's schema, leaving stops. It never closes the file.

    Attributes:
        rows: The number of the row after the last Block that was given, from the stream's start.
        idle_seconds: How long whoever takes the Blocks has waited for them.
        stream_bytes: How many bytes were read; some of them may be of rows that are still to come.
    """

    def __init__(self, file: Readable | Pieces, settings: ReadSettings | None = None) -> None:
        """Read nothing yet.

        Args:
            file: Where the stream comes from.
            settings: How to read it.
        """
        self._settings = settings or ReadSettings()
        self._file = file
        self._source: Source = file if is_pieces(file) else FileSource(cast("Readable", file))
        self._parser = StreamParser(self._settings.schema)
        self._joiner: Joiner | None = None
        self._blocks: Iterator[Block] | None = None
        self._ahead: Ahead[Block] | None = None
        self._pieces: Pieces | None = None
        self.rows = self._settings.skip_rows
        self.idle_seconds = 0.0
        self.stream_bytes = 0

    @property
    def features(self) -> Features:
        """The layout of the Blocks, and with it the schema; known once entered."""
        if self._joiner is None:
            raise _not_entered()
        return self._joiner.features

    def __enter__(self) -> Self:
        """Read as far as the schema.

        Raises:
            StreamError: It is no stream, or its columns do not fit the schema.
        """
        self._source = source_of(self._file)
        self._pieces = self._source if is_pieces(self._source) else None
        if self._pieces is not None:
            self._pieces.attach(self._parser)
        try:
            columns = read_schema(self._source, self._parser)
            self._joiner = Joiner(self._laid_out(), self._settings.slices)
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

    def _laid_out(self) -> Features:
        if self._parser.schema is None:
            raise StreamError("it has no schema; give one")
        if self._settings.schema is not None:
            return Features.of(self._parser.schema)
        try:
            features = Features.of(self._parser.schema)
        except ConfigError as error:  # The stream's own is wrong, not a setting.
            raise StreamError(error.message) from error
        _check_size(features)
        return features

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop reading."""
        self.close()

    def __iter__(self) -> Iterator[Block]:
        """Give the Blocks, each once.

        Raises:
            StreamError: After the last good row.
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

    def close(self) -> None:
        """Stop reading; the file stays open, and what was read ahead of it is lost."""
        self._source.close()

    def _next(self) -> Block | None:
        if self._blocks is None:
            raise _not_entered()
        return next(self._blocks, None)


def _check_size(features: Features) -> None:
    """Refuse what whoever writes a stream must not decide alone: how much memory a few words of it take."""
    width = features.slots + features.dense_width
    for what, came, most in (
        ("rows of tables (buckets)", features.rows - 1, MOST_SAID_TABLE_ROWS),
        ("values a row (values, size)", width, MOST_SAID_WIDTH),
    ):
        if came > most:
            raise StreamError(
                f"the schema in its metadata asks for {came} {what}, at most {most} are given to what a "
                "stream says itself; if they are meant, give the schema with --schema FILE"
            )


def _not_entered() -> ConfigError:
    return ConfigError("a Reader is entered (`with reader:`) before it is used")


class BackgroundReader(Reader):
    """The same, read ahead by a thread: parsing and joining overlap with learning."""

    def __enter__(self) -> Self:
        """Read as far as the schema, then begin to read ahead; see ``Reader``."""
        super().__enter__()
        self._blocks = self._ahead = Ahead(
            self._blocks or iter(()), self._source, self._settings.blocks_ahead
        )
        return self

    def close(self) -> None:
        """Stop the thread; see ``Reader``."""
        if self._ahead is not None:
            self._ahead.close()
        super().close()


class _Cutter:
    """Cuts record batches, of whatever sizes they come in, into Blocks of one size."""

    def __init__(self, source: Source, parser: StreamParser, joiner: Joiner, settings: ReadSettings) -> None:
        self._source, self._parser, self._joiner, self._settings = source, parser, joiner, settings
        self._waiting: deque[pa.RecordBatch] = deque()
        self._rows = 0
        self._first_row = 0
        self._due: float | None = None
        self._dry = False

    def blocks(self) -> Iterator[Block]:
        """Read to the end."""
        try:
            while self._read():
                while self._rows >= self._settings.batch_rows:
                    yield from self._block(self._settings.batch_rows)
                if self._is_last():
                    yield from self._block(self._rows)
                # Only when no bytes wait: a slow learner is no slow stream, and its Blocks stay whole.
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
        """Wait for bytes, and take them; False at the end of the stream."""
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
        """Join the next rows; where one is wrong, those before it, then raise."""
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
