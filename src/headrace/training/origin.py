"""Where the rows of a topic lie, and where a run goes on in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.errors import ConfigError
from headrace.stream.kafka.address import SCHEME, parse_topic, read_settings
from headrace.stream.kafka.source import Asked, KafkaSource, Position
from headrace.training.running.checkpoint import Checkpoint
from headrace.training.running.resumption import rows_before


class TopicOrigin:
    """A topic as a trainer knows it: by the numbers of all rows that were ever taken.

    Attributes:
        source: What gives its bytes.
        skip_rows: How many rows of the first message were taken already.
    """

    def __init__(self, source: KafkaSource, rows: int) -> None:
        """Begin.

        Args:
            source: What gives its bytes.
            rows: How many rows were taken in earlier parts of the run.
        """
        self.source = source
        self.skip_rows = source.skip_rows
        self._before = rows - source.skip_rows
        self._position: Position | None = None

    def position(self, rows: int) -> Mapping[str, object]:
        """See ``Origin``."""
        self._position = self.source.position(rows - self._before)
        found: dict[str, object] = msgspec.to_builtins(self._position)
        return found

    def saved(self) -> None:
        """See ``Origin``."""
        if self._position is not None:
            self.source.saved(self._position)


class Asking(Protocol):
    """What says which topic is read, and how; see ``TrainOptions``."""

    @property
    def input(self) -> str:
        """The input as it was given."""

    @property
    def kafka_config(self) -> Path | None:
        """Settings of Kafka's client."""

    @property
    def skip_messages(self) -> Collection[tuple[int, int]]:
        """Messages to pass over, as partition and offset."""

    @property
    def checkpoint(self) -> Path | None:
        """Where checkpoints are."""

    @property
    def continued(self) -> bool:
        """Whether the input begins with the rows after the checkpoint."""


@contextmanager
def open_origin(options: Asking, checkpoint: Checkpoint | None) -> Iterator[TopicOrigin | None]:
    """Find the topic that the input names; None if it names none.

    Args:
        options: What is asked.
        checkpoint: What the run goes on from; None if it begins.

    Raises:
        ConfigError: The topic is not there, does not answer, or the checkpoint is of another stream.
    """
    saved = None if checkpoint is None else checkpoint.meta.get("origin")
    if not options.input.startswith(SCHEME):
        if saved is not None and not options.continued:
            raise ConfigError(
                "input: the checkpoint goes on in a topic of Kafka; name that, or say with --continued that "
                "this input begins with the rows after it"
            )
        yield None
        return
    if checkpoint is not None and saved is None and not options.continued:
        raise ConfigError(
            "input: the checkpoint does not go on in a topic of Kafka; say with --continued that the topic's "
            "first rows are those after it"
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
