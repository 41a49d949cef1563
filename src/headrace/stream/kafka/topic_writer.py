"""Publish rows to a topic: each message is a small stream of its own, with its schema."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.base.errors import ConfigError, HeadraceError, StreamError
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.byte_sources import Readable, source_of
from headrace.stream.kafka.topic_address import Topic, make_client, partitions_of, reason
from headrace.stream.schema import Schema

_CONNECT_SECONDS = 10.0
_DELIVERY_MILLISECONDS = 120_000
_CREATE_SECONDS = 30.0
_POLL_SECONDS = 0.2


class Published(NamedTuple):
    """The result of publishing.

    Attributes:
        rows: Number of rows.
        messages: Number of messages, all acknowledged.
        size_bytes: Total size of the messages.
    """

    rows: int
    messages: int
    size_bytes: int


def batches_of(file: Readable, schema: Schema | None) -> Iterator[pa.RecordBatch]:
    """Yield a stream's record batches, with the schema in the metadata of each.

    Args:
        file: The stream.
        schema: The Schema of the columns; None for the stream's own.

    Raises:
        StreamError: The stream is cut off or corrupt.
    """
    parser, source = StreamParser(schema), source_of(file)
    try:
        while count := source.read(parser.room(), None):
            if (batch := parser.filled(count)) is not None:
                said = batch.schema.metadata or {}
                if schema is not None:
                    said = {**said, b"headrace": schema.encode()}
                yield batch.replace_schema_metadata(said)
        parser.finish()
    finally:
        source.close()


def encoded(batch: pa.RecordBatch) -> bytes:
    """Encode rows as a stream of their own."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


class Publisher:
    """Publishes messages to all partitions in turn, and requires an acknowledgement of each.

    ``publish`` waits for all acknowledgements before it returns.
    """

    def __init__(self, topic: Topic, settings: Mapping[str, Any], make_partitions: int | None) -> None:
        """Find the topic, or create it.

        Args:
            topic: The topic.
            settings: Further settings of Kafka's client.
            make_partitions: Number of partitions with which to create a missing topic; None to create none.

        Raises:
            ConfigError: The topic does not exist, its brokers do not answer, or the settings are invalid.
        """
        self._topic = topic
        self._failures: list[str] = []
        own = {
            "enable.idempotence": True,
            "delivery.timeout.ms": _DELIVERY_MILLISECONDS,
            "linger.ms": 5,
            "error_cb": lambda error: self._failures.append(error.str()),
        }
        if make_partitions is not None and _make(topic, settings, make_partitions):
            _await_leaders(topic, settings, make_partitions)
        self._client = make_client("Producer", own, topic, settings)
        self._partitions = partitions_of(self._client, topic, _CONNECT_SECONDS, self._failures)
        self._refused: str | None = None
        self._messages = self._acknowledged = self._rows = self._bytes = 0

    def publish(
        self, batches: Iterable[pa.RecordBatch], rows: int, progress: Callable[[int], None]
    ) -> Published:
        """Publish batches, each cut into messages, and wait until all are acknowledged.

        Args:
            batches: The rows.
            rows: Maximum number of rows per message.
            progress: Called with the number of rows sent so far.

        Raises:
            HeadraceError: A message was not acknowledged; others may have been.
            StreamError: The rows are cut off or corrupt; those before are published.
        """
        try:
            for batch in batches:
                for start in range(0, batch.num_rows, rows):
                    self._send(batch.slice(start, rows))
                    progress(self._rows)
        except StreamError:
            self._wait()
            raise
        self._wait()
        return Published(self._rows, self._messages, self._bytes)

    def _send(self, batch: pa.RecordBatch) -> None:
        import confluent_kafka  # noqa: PLC0415 - installed, as the client exists

        value = encoded(batch)
        partition = self._partitions[self._messages % len(self._partitions)]
        while True:
            self._check()
            try:
                self._client.produce(
                    self._topic.name, value, partition=partition, on_delivery=self._delivered
                )
                break
            except BufferError:
                self._client.poll(_POLL_SECONDS)
            except confluent_kafka.KafkaException as error:
                raise self._failed(reason(error)) from error
        self._client.poll(0)
        self._messages += 1
        self._rows += batch.num_rows
        self._bytes += len(value)

    def _wait(self) -> None:
        """Wait until every message is acknowledged or one has failed; delivery has a timeout."""
        while self._client.flush(_POLL_SECONDS):
            self._check()
        self._check()
        if self._acknowledged != self._messages:
            raise self._failed(f"{self._messages - self._acknowledged} messages were never acknowledged")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused = self._refused or error.str()
        elif message.offset() is None or message.offset() < 0:
            self._refused = self._refused or "it was acknowledged without an offset"
        else:
            self._acknowledged += 1

    def _check(self) -> None:
        if self._refused is not None:
            raise self._failed(self._refused)

    def _failed(self, why: str) -> HeadraceError:
        last = f" ({self._failures[-1]})" if self._failures else ""
        return HeadraceError(
            f"{self._topic}: a message was not written: {why}{last}; {self._acknowledged} messages were "
            "written. If it is too large, set a smaller --batch-rows"
        )


def _make(topic: Topic, settings: Mapping[str, Any], partitions: int) -> bool:
    """Create a topic; return False if it exists."""
    try:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - only needed for Kafka
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - as above
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - as above
    except ImportError:
        make_client("Producer", {}, topic, settings)  # raises an error that names the missing package
        raise
    failures: list[str] = []
    noted: dict[str, Any] = {"error_cb": lambda error: failures.append(error.str()), "log_level": 0}
    try:
        client = AdminClient({**noted, **settings, "bootstrap.servers": topic.servers})
        client.create_topics(
            [NewTopic(topic.name, partitions)], request_timeout=_CREATE_SECONDS, operation_timeout=10
        )[topic.name].result(_CREATE_SECONDS + 5)
    except (KafkaException, TimeoutError) as error:
        code = error.args[0].code() if error.args and hasattr(error.args[0], "code") else None
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        why = failures[-1] if failures else reason(error)
        raise ConfigError(f"{topic} cannot be created: {why}; is the address right?") from error
    return True


def _await_leaders(topic: Topic, settings: Mapping[str, Any], partitions: int) -> None:
    """Wait until the partitions of a new topic answer: creation returns before they can be written to."""
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - installed, as above

    client = make_client("Consumer", {"group.id": "headrace-publish"}, topic, settings)
    until = time.monotonic() + _CREATE_SECONDS
    try:
        for partition in range(partitions):
            while True:
                try:
                    client.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=2.0)
                    break
                except KafkaException as error:
                    if time.monotonic() > until:
                        raise ConfigError(
                            f"{topic}: its new partition {partition} does not answer: {reason(error)}"
                        ) from error
    finally:
        client.close()
