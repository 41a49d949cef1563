"""Where rows come from: a file, standard input or a topic, as blocks, numbered from the first row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import cast

from headrace.errors import ConfigError
from headrace.stream.block import Block
from headrace.stream.reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.schema import parse_schema
from headrace.stream.sources import Pieces


@contextmanager
def open_stream(name: str | Pieces, schema_file: Path | None, settings: ReadSettings) -> Iterator[Reader]:
    """Read a stream ahead of who learns from it.

    Args:
        name: The file; ``-`` for standard input; or what gives the bytes of a topic.
        schema_file: What says what the columns are; None if the stream does.
        settings: How it is read.

    Raises:
        ConfigError: It cannot be read, or there is nothing in it to learn from.
        StreamError: It begins with what is no stream.
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


class Continued:
    """A reader's blocks, numbered on from the rows before them."""

    def __init__(self, reader: Reader, rows_before: int) -> None:
        """Go on.

        Args:
            reader: What gives the blocks.
            rows_before: How many rows of the stream came before its first one.
        """
        self._reader = reader
        self._rows_before = rows_before

    @property
    def idle_seconds(self) -> float:
        """How long the learner has waited for rows."""
        return self._reader.idle_seconds

    @property
    def stream_bytes(self) -> int:
        """How many bytes were read."""
        return self._reader.stream_bytes

    def __iter__(self) -> Iterator[Block]:
        """Each block, numbered from the stream's first row."""
        for block in self._reader:
            yield (
                replace(block, first_row=block.first_row + self._rows_before) if self._rows_before else block
            )


@contextmanager
def opened(name: str | Pieces) -> Iterator[BufferedReader | Pieces]:
    """Open a file by its name, ``-`` for standard input; what gives the bytes of a topic stays what it is.

    Raises:
        ConfigError: It cannot be opened, or is a terminal.
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
