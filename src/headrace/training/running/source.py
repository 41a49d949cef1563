"""Input of a run: a file, standard input or a topic, as blocks numbered from the first row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import cast

from headrace.base.errors import ConfigError
from headrace.stream.block import Block
from headrace.stream.block_reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.byte_sources import Pieces
from headrace.stream.schema import parse_schema


@contextmanager
def open_stream(name: str | Pieces, schema_file: Path | None, settings: ReadSettings) -> Iterator[Reader]:
    """Open a stream that is read ahead in the background.

    Args:
        name: The file; ``-`` for standard input; or the source of a topic's bytes.
        schema_file: File that describes the columns; None if the stream does.
        settings: Settings of the reader.

    Raises:
        ConfigError: A file cannot be read, or the stream has no label.
        StreamError: The input is not a stream.
    """
    if schema_file is not None:
        try:
            schema = parse_schema(schema_file.read_bytes(), str(schema_file))
        except OSError as error:
            raise ConfigError(f"schema: {schema_file} cannot be read: {error.strerror}") from error
        settings = replace(settings, schema=schema)
    with opened(name) as file, BackgroundReader(file, settings) as reader:
        if reader.features.schema.one("label") is None:
            raise ConfigError("schema: no field is the label; there is nothing to learn from")
        yield reader


class RenumberedBlocks:
    """A reader's blocks, numbered from the stream's first row in a resumed run."""

    def __init__(self, reader: Reader, rows_before: int) -> None:
        """Wrap a reader.

        Args:
            reader: Reader of the blocks.
            rows_before: Number of rows of the stream before the reader's first one.
        """
        self._reader = reader
        self._rows_before = rows_before

    @property
    def idle_seconds(self) -> float:
        """Time that the learner has waited for rows, in seconds."""
        return self._reader.idle_seconds

    @property
    def stream_bytes(self) -> int:
        """Number of bytes read."""
        return self._reader.stream_bytes

    def wait(self, seconds: float) -> bool:
        """Wait for the next block, or the end of the stream; return False after the timeout."""
        return self._reader.wait(seconds)

    def __iter__(self) -> Iterator[Block]:
        """Yield each block, numbered from the stream's first row."""
        for block in self._reader:
            yield (
                replace(block, first_row=block.first_row + self._rows_before) if self._rows_before else block
            )


@contextmanager
def opened(name: str | Pieces) -> Iterator[BufferedReader | Pieces]:
    """Open a file by its name, ``-`` for standard input; yield the source of a topic unchanged.

    Raises:
        ConfigError: The file cannot be opened, or standard input is a terminal.
    """
    if not isinstance(name, str):
        yield name
        return
    if name == "-":
        if sys.stdin.isatty():
            raise ConfigError(
                "input: standard input is a terminal; pipe a stream into it, such as "
                "`headrace stream generate --rows 100000 | headrace train`, or name a file"
            )
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"input: {name} cannot be opened: {error.strerror}") from error
    with file:
        yield file
