"""Input of a run: a file, standard input or a Kafka topic, as blocks numbered from the first row.

A topic also has a position, from which a run resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Protocol, cast

import msgspec

from headrace.base.errors import ConfigError
from headrace.stream.block import Block
from headrace.stream.block_reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.byte_sources import Pieces
from headrace.stream.kafka.topic_address import SCHEME, parse_topic, read_settings
from headrace.stream.kafka.topic_source import KafkaSource, Position, TopicRequest
from headrace.stream.schema import parse_schema
from headrace.training.running.checkpoint import Checkpoint, rows_before


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


class TopicOrigin:
    """A topic whose row numbers continue when a run is resumed, like the trainer's.

    Attributes:
        source: Source of the topic's bytes.
        skip_rows: Number of rows of the first message that were taken already.
    """

    def __init__(self, source: KafkaSource, rows: int) -> None:
        """Wrap a source.

        Args:
            source: Source of the topic's bytes.
            rows: Number of rows taken in earlier parts of the run.
        """
        self.source = source
        self.skip_rows = source.skip_rows
        self._before = rows - source.skip_rows
        self._position: Position | None = None

    def position(self, rows: int) -> Mapping[str, object]:
        """Return the position after the first ``rows`` rows of the stream; see ``trainer.RowPositions``."""
        self._position = self.source.position(rows - self._before)
        found: dict[str, object] = msgspec.to_builtins(self._position)
        return found

    def saved(self) -> None:
        """Note that a checkpoint with the last position was saved; see ``trainer.RowPositions``."""
        if self._position is not None:
            self.source.saved(self._position)


class TopicOptions(Protocol):
    """Options that select a topic and how it is read; see ``TrainOptions``."""

    @property
    def input(self) -> str:
        """The input, as given on the command line."""

    @property
    def kafka_config(self) -> Path | None:
        """File with settings of Kafka's client; None for none."""

    @property
    def skip_messages(self) -> Collection[tuple[int, int]]:
        """Messages to skip, as partition and offset."""

    @property
    def checkpoint(self) -> Path | None:
        """Directory of checkpoints; None for none."""

    @property
    def continued(self) -> bool:
        """Whether the input starts with the rows after the checkpoint."""


@contextmanager
def open_origin(options: TopicOptions, checkpoint: Checkpoint | None) -> Iterator[TopicOrigin | None]:
    """Open the topic that the input names; yield None if it names none.

    Args:
        options: Options of the run.
        checkpoint: Checkpoint to resume from; None for a new run.

    Raises:
        ConfigError: The topic does not exist or does not answer, or the checkpoint is of another stream.
    """
    saved = None if checkpoint is None else checkpoint.meta.get("origin")
    if not options.input.startswith(SCHEME):
        if saved is not None and not options.continued:
            raise ConfigError(
                "input: the checkpoint is of a Kafka topic; name that topic, or set --continued if this "
                "input begins with the rows after the checkpoint"
            )
        yield None
        return
    if checkpoint is not None and saved is None and not options.continued:
        raise ConfigError(
            "input: the checkpoint is not of a Kafka topic; set --continued if the topic begins with the "
            "rows after the checkpoint"
        )
    asked = TopicRequest(
        topic=parse_topic(options.input, "input"),
        settings=read_settings(options.kafka_config),
        skipped=frozenset(options.skip_messages),
        position=None if saved is None else msgspec.convert(saved, Position),
        directory=options.checkpoint,
    )
    source = KafkaSource(asked)
    try:
        yield TopicOrigin(source, rows_before(checkpoint))
    finally:
        source.close()
