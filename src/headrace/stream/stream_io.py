"""Streams in files and pipes: rows read unchanged, and rows written with a progress line.

Code that transforms rows reads them here; learning reads Blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

import pyarrow as pa

from headrace.base.errors import ConfigError
from headrace.base.files import whole_file
from headrace.base.terminal import Line
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.byte_sources import Readable, read_schema, source_of
from headrace.stream.schema import Schema

_ROWS = 8192


class StreamRows:
    """The rows of a stream, unchanged, as record batches.

    Attributes:
        columns: Their Arrow schema.
        schema: Their Schema.
    """

    def __init__(self, file: Readable, schema: Schema | None) -> None:
        """Read as far as the schema.

        Args:
            file: The stream.
            schema: The Schema of the columns; None for the stream's own.

        Raises:
            StreamError: It is not a stream, or has no Schema.
        """
        self._parser, self._source = StreamParser(schema), source_of(file)
        self.columns = read_schema(self._source, self._parser)
        self.schema = self._parser.schema or Schema(fields=())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at most a few thousand rows.

        Raises:
            StreamError: The stream is cut off or corrupt; all rows before were yielded.
        """
        while count := self._source.read(self._parser.room(), None):
            if (batch := self._parser.filled(count)) is not None:
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)
        self._parser.finish()

    def close(self) -> None:
        """Stop reading; the file stays open."""
        self._source.close()


BUFFER_BYTES = 2**20
"""Bytes per write: a column of a batch is small, and system calls are expensive."""

_MESSAGE_FOLLOWS = b"\xff\xff\xff\xff"

Progress = Callable[[int], None]
"""Called with the number of rows written so far."""


def write_stream(
    file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch], progress: Progress
) -> int:
    """Write record batches as a stream.

    Each batch is flushed before the next one is requested. If an error or Ctrl-C ends the rows, the stream
    ends within a message, so that no reader takes it for complete.

    Args:
        file: The file to write to.
        schema: The Arrow schema of the rows, with headrace's schema in its metadata.
        batches: The rows.
        progress: Called after each batch.

    Returns:
        Number of rows written.

    Raises:
        BrokenPipeError: The reader has closed the pipe.
    """
    rows, is_writing = 0, False
    writer = pa.ipc.new_stream(file, schema)
    file.flush()
    try:
        for batch in batches:
            is_writing = True
            writer.write_batch(batch)
            file.flush()
            is_writing = False
            rows += batch.num_rows
            progress(rows)
    except BaseException as error:
        # Ctrl-C within a write has cut the message already, and writing more could block.
        if isinstance(error, Exception) or not is_writing:
            with contextlib.suppress(OSError):  # the reader may be gone
                file.write(_MESSAGE_FOLLOWS)
                file.flush()
        raise
    writer.close()
    file.flush()
    return rows


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open the file to write to, or standard output if ``path`` is None or ``-``.

    A file gets its name when it is complete. Until then, and if writing fails, an existing file is kept.

    Raises:
        ConfigError: Standard output is a terminal, or the file cannot be created.
        OSError: The path is a directory, a pipe or device cannot be opened, or writing fails.
    """
    if path is None or str(path) == "-":
        with _standard_output() as file:
            yield file
        return
    if path.exists() and not path.is_file():  # Renaming a file over a pipe or device would replace it.
        with _unbroken(path) as file:
            yield file
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(whole_file(path, synced=False))
        except OSError as error:
            raise ConfigError(f"--out: {path}: {error.strerror}") from error
        yield file


@contextlib.contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    if sys.stdout.isatty():
        raise ConfigError(
            "standard output is a terminal, and a stream is binary: it would garble the screen; "
            "pipe it (… | headrace stream inspect) or name a file (--out rows.arrows)"
        )
    with _unbroken(os.dup(sys.stdout.fileno())) as file:
        yield file


@contextlib.contextmanager
def _unbroken(where: Path | int) -> Iterator[BinaryIO]:
    """Open an output that may be a pipe. After an error, write nothing more: its reader may be gone."""
    raw = io.FileIO(where, "wb")
    try:
        file = io.BufferedWriter(raw, BUFFER_BYTES)
        yield file
        file.flush()
    finally:
        raw.close()  # Bypasses the buffer, which would retry what could not be written.


class ProgressLine:
    """A progress line on a terminal; writes nothing elsewhere."""

    def __init__(self, file: TextIO, total_rows: int | None = None, *, shown: bool | None = None) -> None:
        """Start counting.

        Args:
            file: The terminal, mostly standard error.
            total_rows: Expected number of rows, if known.
            shown: Whether to draw; by default, if ``file`` is a terminal.
        """
        self._line = Line(file, shown=shown)
        self._total = total_rows
        self._started = time.monotonic()

    def __call__(self, rows: int) -> None:
        """Show the number of rows so far."""
        if not self._line.due:
            return
        pace = rows / max(time.monotonic() - self._started, 1e-9)
        text = f"{rows:,} rows, {pace:,.0f} rows/s"
        if self._total:
            share = min(1.0, rows / self._total)
            text = f"[{'#' * round(30 * share):<30}] {share:4.0%}  {text}"
        self._line.show(text)

    def close(self) -> None:
        """Clear the line."""
        self._line.clear()
