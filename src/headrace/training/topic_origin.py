"""Kafka topics as input of a run, and the position from which a run resumes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.base.errors import ConfigError
from headrace.stream.kafka.topic_address import SCHEME, parse_topic, read_settings
from headrace.stream.kafka.topic_source import Asked, KafkaSource, Position
from headrace.training.running.checkpoint import Checkpoint
from headrace.training.running.resumption import rows_before


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
    asked = Asked(
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
