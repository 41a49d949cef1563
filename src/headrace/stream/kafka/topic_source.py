"""A Source that reads a topic's messages one after the other; each is a whole stream."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.base.errors import ConfigError, StreamError
from headrace.stream.byte_sources import Pieces, Streams, Woken
from headrace.stream.kafka.message_order import Merge, Message, OrderLog, Picked
from headrace.stream.kafka.topic_address import Topic, make_client, partitions_of, reason

SILENT_SECONDS = 1.0
"""Longest time that a partition without further messages delays the others."""

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 2.0
_LOOK_FOR_PARTITIONS_SECONDS = 60.0
_MOST_WAITING = 256
_MOST_WAITING_BYTES = 2**24
_AT_ONCE = 64
_DAY_MILLISECONDS = 86_400_000

_log = logging.getLogger(__name__)


class Position(msgspec.Struct, kw_only=True):
    """The position of a run in a topic.

    Attributes:
        topic: The topic.
        offsets: Pairs of a partition and the offset of its first message that is not fully consumed.
        number: The number in the order of the next message, or of one that is partly consumed.
        within: Partition and offset of the partly consumed message; None if there is none.
        rows: Number of its rows that were consumed.
    """

    topic: str
    offsets: list[tuple[int, int]]
    number: int = 0
    within: tuple[int, int] | None = None
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TopicRequest:
    """Which messages of a topic to read.

    Attributes:
        topic: The topic.
        settings: Further settings of Kafka's client, by its own names.
        skipped: Messages to skip, as partition and offset.
        position: The position to continue from; None for the first available messages.
        directory: Directory in which the order is recorded; None to record nothing.
    """

    topic: Topic
    settings: Mapping[str, Any] = field(default_factory=dict)
    skipped: frozenset[tuple[int, int]] = frozenset()
    position: Position | None = None
    directory: Path | None = None


class _Begun(NamedTuple):
    """A message and the row of the stream at which it begins."""

    row: int
    number: int
    partition: int
    offset: int


class KafkaSource(Pieces):
    """Reads a topic's partitions in one order, from the beginning or from a run's position.

    One thread reads; another one may query positions.

    Attributes:
        skip_rows: Number of rows of the first message that were consumed already.
    """

    wakes = True

    def __init__(self, asked: TopicRequest) -> None:
        """Find the topic, and begin to fetch.

        Raises:
            ConfigError: The topic does not exist, its brokers do not answer, or the settings or the position
                are invalid.
        """
        position = asked.position
        if position is not None and position.topic != asked.topic.name:
            raise ConfigError(
                f"input: expected topic {position.topic}, as in the checkpoint, got {asked.topic.name}; "
                "name that topic, or use another --checkpoint directory"
            )
        self._asked = asked
        self._topic = asked.topic
        within = position.within if position is not None else None
        taken = within is not None and within not in asked.skipped
        self.skip_rows = position.rows if position is not None and taken else 0
        self._failures: list[str] = []
        self._down = False
        self._ended: StreamError | None = None
        self._looked = self._looked_for_partitions = time.monotonic()
        self._at_end: dict[int, float] = {}
        self._paused: set[int] = set()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._begun: deque[_Begun] = deque()
        self._streams: Streams | None = None
        self._rest = memoryview(b"")
        self._is_open = self._is_assigned = False
        number = 0 if position is None else position.number
        self._order = OrderLog(asked.directory, asked.topic.name, number)
        self._merge = Merge(number, self._order.known.picked)
        self._before = Position(topic=asked.topic.name, offsets=[], number=number)
        self._offsets = dict(position.offsets) if position is not None else {}
        self._client = make_client("Consumer", self._own(), asked.topic, asked.settings)
        try:
            self._assign(partitions_of(self._client, self._topic, _CONNECT_SECONDS, self._failures))
            self._is_assigned = True
        except BaseException:
            self._client.close()
            raise

    # ---- Bytes --------------------------------------------------------------------------------

    def attach(self, streams: Streams) -> None:
        """See ``Pieces``."""
        self._streams = streams

    def read(self, room: memoryview, timeout: float | None) -> int | None:
        """See ``Source``; a topic has no end.

        Raises:
            StreamError: A message is not a stream of rows, or messages were deleted.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._rest:
            if self._woken.is_set():
                raise Woken
            self._finish()
            picked = self._merge.pick(self._is_silent)
            if picked is not None:
                self._begin(picked)
                continue
            left = _POLL_SECONDS if until is None else min(_POLL_SECONDS, until - time.monotonic())
            if left <= 0.0:
                return None
            self._fetch(left)
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def wake(self) -> None:
        """See ``Source``."""
        self._woken.set()

    def close(self) -> None:
        """See ``Source``."""
        if not self._woken.is_set() or self._client is not None:
            self._woken.set()
            if self._client is not None:
                self._client.close()
                self._client = None
            self._order.close()

    # ---- Positions ----------------------------------------------------------------------------

    def position(self, row: int) -> Position:
        """Return the position of a run that has consumed a number of rows.

        Earlier positions are dropped: the next call must be for the same row or a later one.

        Args:
            row: Number of rows consumed since this source began to read, ``skip_rows`` included.
        """
        with self._lock:
            while len(self._begun) > 1 and self._begun[1].row <= row:
                done = self._begun.popleft()
                self._offsets[done.partition] = done.offset + 1
                self._before.number = done.number + 1
            offsets = sorted(self._offsets.items())
            if not self._begun or self._begun[0].row >= row:
                return Position(topic=self._topic.name, offsets=offsets, number=self._before.number)
            first = self._begun[0]
            return Position(
                topic=self._topic.name,
                offsets=offsets,
                number=first.number,
                within=(first.partition, first.offset),
                rows=row - first.row,
            )

    def saved(self, position: Position) -> None:
        """Record that a checkpoint with this position was saved."""
        self._order.saved(position.number)

    def located(self, error: StreamError) -> StreamError:
        """See ``Pieces``."""
        if error is self._ended:
            return error
        with self._lock:
            found = next((one for one in reversed(self._begun) if one.row <= error.row), None)
        if found is None:
            return error
        return error.within(
            f"it is row {error.row - found.row} of the message with offset {found.offset} in partition "
            f"{found.partition} of {self._topic}; --skip-message {found.partition}:{found.offset} skips "
            "that message"
        )

    def _begin(self, picked: Picked) -> None:
        message = picked.message
        if picked.by_chance:
            self._order.picked(picked.number, message.partition)
        if (message.partition, message.offset) in self._asked.skipped:
            _log.warning(
                "message %d of partition %d is skipped, as requested", message.offset, message.partition
            )
            message = message._replace(value=b"")
        elif not message.value:
            raise self._empty(message, picked.number)
        with self._lock:
            row = 0 if self._streams is None else self._streams.position.rows
            self._begun.append(_Begun(row, picked.number, message.partition, message.offset))
        self._rest, self._is_open = memoryview(message.value), bool(message.value)
        count, size = self._merge.waiting(message.partition)
        if message.partition in self._paused and 2 * count < _MOST_WAITING and 2 * size < _MOST_WAITING_BYTES:
            self._paused.discard(message.partition)
            self._client.resume([self._at(message.partition)])

    def _finish(self) -> None:
        """Check that the message just read is a complete stream."""
        if self._is_open and self._streams is not None:
            self._is_open = False
            self._streams.next_stream()

    def _empty(self, message: Message, number: int) -> StreamError:
        row = 0 if self._streams is None else self._streams.position.rows
        with self._lock:
            self._begun.append(_Begun(row, number, message.partition, message.offset))
        return StreamError("expected an Arrow IPC stream, got an empty message", row=row)

    # ---- Fetching -----------------------------------------------------------------------------

    def _own(self) -> dict[str, Any]:
        return {
            "group.id": "headrace-train",  # clients require one, but no group is joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "max.poll.interval.ms": _DAY_MILLISECONDS,
            "queued.max.messages.kbytes": 2**14,
            "error_cb": self._fail,
        }

    def _at(self, partition: int, offset: int | None = None) -> Any:
        import confluent_kafka  # noqa: PLC0415 - installed, as the client exists

        if offset is None:
            return confluent_kafka.TopicPartition(self._topic.name, partition)
        return confluent_kafka.TopicPartition(self._topic.name, partition, offset)

    def _assign(self, partitions: list[int]) -> None:
        """Begin to fetch partitions, known ones at the run's position, new ones at their first message."""
        import confluent_kafka  # noqa: PLC0415 - as above

        gone = sorted(set(self._offsets) - set(partitions))
        if gone:
            raise ConfigError(f"input: {self._topic} has no partitions {gone}, which the checkpoint requires")
        went_on = bool(self._offsets)
        empty = True
        for partition in partitions:
            try:
                low, high = self._client.get_watermark_offsets(self._at(partition), timeout=_CONNECT_SECONDS)
            except confluent_kafka.KafkaException as error:
                raise ConfigError(
                    f"input: partition {partition} of {self._topic} does not answer: {reason(error)}"
                ) from error
            empty = empty and low == high
            known = self._offsets.get(partition)
            if known is None:
                since = self._since(partition) if went_on else self._merge.number
                self._offsets[partition] = low
            else:
                since = self._order.known.joined.get(partition, 0)
                self._check(partition, known, low, high)
            self._merge.join([partition], since)
        self._client.assign([self._at(one, offset) for one, offset in sorted(self._offsets.items())])
        if empty:
            _log.warning("%s is empty; waiting for its first rows", self._topic)

    def _check(self, partition: int, offset: int, low: int, high: int) -> None:
        if not low <= offset <= high:
            raise ConfigError(
                f"input: the run resumes at offset {offset} of partition {partition} of {self._topic}, which "
                f"has {low} to {high}: messages were deleted before they were learnt from, or the topic was "
                "recreated; start anew without --resume, in another --checkpoint directory"
            )

    def _since(self, partition: int) -> int:
        """Return the number from which a new partition takes part: as recorded, or after all known picks."""
        known = self._order.known
        since = known.joined.get(partition)
        if since is None:
            since = max([self._merge.number, *(number + 1 for number in known.picked)])
            self._order.joined(since, partition)
        return since

    def _fetch(self, seconds: float) -> None:
        """Queue arriving messages until ``_AT_ONCE`` have come or the timeout has passed."""
        came = self._client.consume(_AT_ONCE, seconds)
        for one in came:
            error = one.error()
            if error is not None:
                self._told(one.partition(), error)
                continue
            value = one.value() or b""
            self._merge.add(Message(one.partition(), one.offset(), one.timestamp()[1], value))
            self._at_end.pop(one.partition(), None)
            count, size = self._merge.waiting(one.partition())
            if (
                count >= _MOST_WAITING or size >= _MOST_WAITING_BYTES
            ) and one.partition() not in self._paused:
                self._paused.add(one.partition())
                self._client.pause([self._at(one.partition())])
        if any(one.error() is None for one in came):
            self._is_back()
        elif self._down and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        if time.monotonic() - self._looked_for_partitions > _LOOK_FOR_PARTITIONS_SECONDS:
            self._look_for_partitions()

    def _told(self, partition: int, error: Any) -> None:
        """Handle an event or an error of a partition."""
        import confluent_kafka  # noqa: PLC0415 - as above

        codes = confluent_kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            self._at_end[partition] = time.monotonic()
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            raise self._lost(
                f"messages of partition {partition} of {self._topic} were deleted before they were learnt "
                f"from ({error.str()}); set a longer retention for the topic"
            )
        elif error.code() in (
            codes.UNKNOWN_TOPIC_OR_PART,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
            codes.TOPIC_AUTHORIZATION_FAILED,
        ):
            raise self._lost(f"{self._topic} can no longer be read: {error.str()}")
        else:
            self._fail(error)

    def _lost(self, what: str) -> StreamError:
        self._ended = StreamError(what, row=0 if self._streams is None else self._streams.position.rows)
        return self._ended

    def _is_silent(self, partition: int) -> bool:
        since = self._at_end.get(partition)
        return since is not None and time.monotonic() - since >= SILENT_SECONDS

    # ---- A broker that does not answer -------------------------------------------------------

    def _fail(self, error: Any) -> None:
        """Record a client error; the client retries by itself.

        The client also calls this while one of its methods runs.
        """
        import confluent_kafka  # noqa: PLC0415 - as above

        codes = confluent_kafka.KafkaError
        self._failures = [*self._failures[-9:], error.str()]
        told = (codes._ALL_BROKERS_DOWN, codes._AUTHENTICATION, codes._SSL)
        if error.code() in told and not self._down and self._is_assigned:
            self._down = True
            self._looked = time.monotonic()
            _log.warning(
                "Kafka at %s does not answer (%s); waiting until it answers again",
                self._topic.servers,
                error.str(),
            )

    def _is_back(self) -> None:
        if self._down:
            self._down = False
            _log.warning("Kafka at %s answers again", self._topic.servers)

    def _look(self) -> None:
        """Check whether the brokers answer again; the client does not report that until messages arrive."""
        import confluent_kafka  # noqa: PLC0415 - as above

        self._looked = time.monotonic()
        try:
            self._client.list_topics(self._topic.name, timeout=1.0)
        except confluent_kafka.KafkaException:
            return
        self._is_back()

    def _look_for_partitions(self) -> None:
        """Begin to read partitions that were added to the topic."""
        import confluent_kafka  # noqa: PLC0415 - as above

        self._looked_for_partitions = time.monotonic()
        try:
            found = (
                self._client.list_topics(self._topic.name, timeout=1.0).topics[self._topic.name].partitions
            )
            new = sorted(set(found) - set(self._offsets))
            starts = [self._client.get_watermark_offsets(self._at(one), timeout=1.0)[0] for one in new]
        except confluent_kafka.KafkaException:
            return
        for partition, low in zip(new, starts, strict=True):
            _log.warning("%s has a new partition, %d, which is read from now on", self._topic, partition)
            self._merge.join([partition], self._since(partition))
            with self._lock:
                self._offsets[partition] = low
            self._client.incremental_assign([self._at(partition, low)])
