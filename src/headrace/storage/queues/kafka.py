"""The Queue in an Apache Kafka topic, and its backlog.

The key of a message selects its partition, and a partition has one receiver at a time, so a key has one
receiver. ``publish`` returns once all in-sync replicas have the messages. The queue cannot look up waiting
messages: it drops no duplicates, and ``remove`` does nothing.

No broker is contacted before the first call that needs one. So a process starts and keeps running while Kafka
is down, and every call raises ``Unavailable`` in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from threading import Event, Lock
from typing import Any, cast
from weakref import WeakSet

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from headrace.base.errors import Unavailable
from headrace.storage.queues.kafka_clients import Refusal, client_settings, made, reason, unavailable
from headrace.storage.queues.kafka_receiver import KafkaReceiver, closed
from headrace.storage.queues.queue import Depth, Message, Receiver, check_messages, check_room
from headrace.storage.settings import KafkaQueue

# The backlog consists of the messages in the topic's partitions that the group has not committed. Brokers are
# asked at most once a second. The age of the oldest message comes from reading the first waiting message of
# each partition, once for each offset.

_FRESH_SECONDS = 1.0
_DEPTH_POLL_SECONDS = 0.1
_EARLIEST, _LATEST = cast(Any, OffsetSpec).earliest(), cast(Any, OffsetSpec).latest()  # it has no types


class KafkaDepth:
    """Counts the backlog of a topic."""

    def __init__(self, client: dict[str, Any], settings: KafkaQueue) -> None:
        """Keep the settings; no broker is contacted yet.

        Args:
            client: Settings common to all clients.
            settings: Settings of the queue.
        """
        self._client = client
        self._settings = settings
        self._lock = Lock()
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._refusal = Refusal()
        self._read = float("-inf")
        self._count = 0
        self._oldest: dict[int, tuple[int, float]] = {}  # partition → offset, time of publication

    def read(self) -> Depth:
        """Return the backlog, up to a second old.

        Raises:
            Unavailable: No broker answered in time.
        """
        if not self._lock.acquire(timeout=self._settings.timeout_seconds):
            raise unavailable("cannot count messages", "no broker answered in time")
        try:
            if time.monotonic() >= self._read + _FRESH_SECONDS:
                self._count_in_time(time.monotonic() + self._settings.timeout_seconds)
                self._read = time.monotonic()
            if not self._count or not self._oldest:
                return Depth(self._count, 0.0)
            oldest = min(queued for _, queued in self._oldest.values())
            return Depth(self._count, max(0.0, datetime.now(UTC).timestamp() - oldest))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close connections."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._admin = None

    def _count_in_time(self, deadline: float) -> None:
        is_second = False
        while True:
            try:
                self._count_backlog(deadline)
            except TimeoutError as error:
                raise unavailable("cannot count messages", "no broker answered in time") from error
            except KafkaException as error:
                # A new or moving partition has no leader for a moment. After a broker restart the clients
                # cache an old leader epoch and would keep sending it.
                is_passing = error.args[0].retriable()
                if self._consumer is not None:
                    self._consumer.poll(0)  # runs the error callback
                if not is_passing:
                    self.close()
                if (is_second and not is_passing) or time.monotonic() >= deadline:
                    raise unavailable("cannot count messages", self._refusal.said or reason(error)) from error
                is_second = is_second or not is_passing
                time.sleep(_DEPTH_POLL_SECONDS)
            else:
                self._refusal.said = ""
                return

    def _count_backlog(self, deadline: float) -> None:
        admin, consumer = self._clients()
        topic = self._settings.topic

        def left() -> float:
            return max(0.1, deadline - time.monotonic())

        known = consumer.list_topics(topic, timeout=left()).topics[topic].partitions
        places = [TopicPartition(topic, number) for number in sorted(known)]
        if not places:
            self._count, self._oldest = 0, {}
            return
        ends = admin.list_offsets(dict.fromkeys(places, _LATEST), request_timeout=left())
        starts = admin.list_offsets(dict.fromkeys(places, _EARLIEST), request_timeout=left())
        committed = {one.partition: one.offset for one in consumer.committed(places, timeout=left())}
        waiting: dict[int, int] = {}
        self._count = 0
        for place in places:
            end, start = ends[place].result(left()).offset, starts[place].result(left()).offset
            first = max(start, committed.get(place.partition, start))
            if first < end:
                waiting[place.partition] = first
                self._count += end - first
        self._find_oldest(consumer, waiting, deadline)

    def _find_oldest(self, consumer: Consumer, waiting: dict[int, int], deadline: float) -> None:
        """Read the publication time of each partition's first waiting message, unless it is known."""
        self._oldest = {
            number: known for number, known in self._oldest.items() if waiting.get(number) == known[0]
        }
        missing = {number: offset for number, offset in waiting.items() if number not in self._oldest}
        if not missing:
            return
        topic = self._settings.topic
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in missing.items()])
        while missing and time.monotonic() < deadline:
            message = consumer.poll(_DEPTH_POLL_SECONDS)
            if message is None or message.error() is not None:
                continue
            number = message.partition()
            if number in missing:
                self._oldest[number] = (missing.pop(number), message.timestamp()[1] / 1000)
                consumer.incremental_unassign([TopicPartition(topic, number)])
        consumer.unassign()

    def _clients(self) -> tuple[AdminClient, Consumer]:
        if self._admin is None or self._consumer is None:
            self._admin = made(AdminClient, self._client)
            self._consumer = made(
                Consumer,
                {
                    **self._client,
                    "error_cb": self._refusal,
                    "group.id": self._settings.group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "queued.min.messages": 1,
                    "fetch.message.max.bytes": 4096,  # one message is always returned, whatever its size
                },
            )
        return self._admin, self._consumer


_LARGEST_WAITING_MESSAGES = 100_000  # buffered in a producer until a broker accepts them
_PREFETCHED_MESSAGES = 10_000
_PREFETCHED_KILOBYTES = 16_384
_POLL_SECONDS = 0.01
_REPLICATION_THAT_MAY_LOSE_ONE = 3


class KafkaMessages:
    """A Queue that several machines share."""

    def __init__(self, settings: KafkaQueue) -> None:
        """Keep the settings; no broker is contacted yet.

        Args:
            settings: Addresses of brokers, and settings of the topic.

        Raises:
            ConfigError: A file named in the settings cannot be read.
        """
        self._settings = settings
        self._client = client_settings(settings)
        self._producer: Producer | None = None
        self._making = Lock()
        self._polling = Lock()
        self._has_topic = not settings.create
        self._depth = KafkaDepth(self._client, settings)
        self._receivers: WeakSet[KafkaReceiver] = WeakSet()

    def publish(self, messages: Sequence[Message]) -> None:
        """See Queue."""
        check_messages(messages)
        if not messages:
            return
        deadline = time.monotonic() + self._settings.timeout_seconds
        self._make_topic(deadline)
        self._check_room(len(messages))
        producer = self._shared_producer()
        batch = _Batch(len(messages))
        for number, message in enumerate(messages):
            if not self._produce(producer, message, batch, deadline):
                batch.give_up(len(messages) - number)
                break
        self._await(producer, batch, deadline)

    def receiver(self) -> Receiver:
        """See Queue."""
        settings = self._settings
        milliseconds = int(settings.visibility_seconds * 1000)
        client = {
            **self._client,
            "group.id": settings.group,
            "session.timeout.ms": milliseconds,
            "max.poll.interval.ms": milliseconds,
            "heartbeat.interval.ms": max(100, milliseconds // 10),
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "queued.min.messages": _PREFETCHED_MESSAGES,
            "queued.max.messages.kbytes": _PREFETCHED_KILOBYTES,
        }
        receiver = _TopicFirst(self._make_topic, client, settings)
        self._receivers.add(receiver)
        return receiver

    def remove(self, keys: Collection[bytes]) -> bool:
        """See Queue. Returns False, as Kafka cannot remove messages."""
        return False

    def depth(self) -> Depth:
        """See Queue. The result is up to a second old, and 0 if the topic does not exist."""
        self._make_topic(time.monotonic() + self._settings.timeout_seconds)
        return self._depth.read()

    def close(self) -> None:
        """See Queue."""
        closed(list(self._receivers))
        self._depth.close()
        self._producer = None

    # ---- publishing -------------------------------------------------------------------------------

    def _check_room(self, more: int) -> None:
        check_room(self._depth.read().messages, more, self._settings.max_messages)

    def _shared_producer(self) -> Producer:
        with self._making:
            if self._producer is None:
                milliseconds = int(self._settings.timeout_seconds * 1000)
                self._producer = made(
                    Producer,
                    {
                        **self._client,
                        "acks": "all",
                        "enable.idempotence": True,
                        "message.timeout.ms": max(10, milliseconds),
                        "linger.ms": 0,
                        "compression.type": "lz4",
                        "partitioner": "murmur2_random",  # the default of Kafka's Java clients
                        "queue.buffering.max.messages": _LARGEST_WAITING_MESSAGES,
                    },
                )
            return self._producer

    def _produce(self, producer: Producer, message: Message, batch: _Batch, deadline: float) -> bool:
        """Pass a message to the producer; return False if it fails or its buffer stays full."""
        while True:
            try:
                producer.produce(self._settings.topic, message[1], message[0], on_delivery=batch.delivered)
            except BufferError:
                if time.monotonic() >= deadline:
                    full = "the producer's buffer stayed full; publish again once brokers accept messages"
                    batch.error = batch.error or KafkaError(KafkaError._QUEUE_FULL, full)
                    return False
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                batch.error = error.args[0]
                return False
            else:
                return True

    def _await(self, producer: Producer, batch: _Batch, deadline: float) -> None:
        while not batch.is_settled.is_set() and time.monotonic() < deadline:
            if self._polling.acquire(blocking=False):  # one thread polls for all
                try:
                    producer.poll(_POLL_SECONDS)
                finally:
                    self._polling.release()
            else:
                batch.is_settled.wait(_POLL_SECONDS)
        error = batch.error
        if error is not None and error.fatal():
            with self._making:
                if self._producer is producer:  # unusable after a fatal error: the next call makes another
                    self._producer = None
        if error is not None:
            raise unavailable("cannot publish", error.str())
        if not batch.is_settled.is_set():
            raise unavailable("cannot publish", "no broker accepted all messages in time")

    def _make_topic(self, deadline: float) -> None:
        """Create the topic with the first call, unless ``settings.create`` is False.

        Raises:
            Unavailable: No broker answered, or the topic cannot be created.
        """
        if self._has_topic:
            return
        settings = self._settings
        in_sync = max(1, settings.replication - 1)
        if settings.replication < _REPLICATION_THAT_MAY_LOSE_ONE:
            in_sync = 1
        topic = NewTopic(
            settings.topic,
            num_partitions=settings.partitions,
            replication_factor=settings.replication,
            config={"min.insync.replicas": str(in_sync)},
        )
        left = max(0.1, deadline - time.monotonic())
        refusal = Refusal()
        admin = made(AdminClient, {**self._client, "error_cb": refusal})
        try:
            future = admin.create_topics([topic], operation_timeout=left, request_timeout=left)[
                settings.topic
            ]
            future.result(left + 1)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                admin.poll(0)  # runs the error callback
                why = refusal.said or reason(error)
                raise unavailable(f"cannot create the topic {settings.topic}", why) from error
        except TimeoutError as error:
            raise Unavailable("Kafka: no broker created the topic in time") from error
        self._has_topic = True


class _Batch:
    """Messages of one call that wait for a broker to accept them.

    Attributes:
        error: First error, if any.
        is_settled: Set once all messages were accepted or have failed.
    """

    def __init__(self, count: int) -> None:
        self.error: KafkaError | None = None
        self.is_settled = Event()
        self._left = count
        self._lock = Lock()

    def delivered(self, error: KafkaError | None, _: KafkaMessage) -> None:
        """Note a message as accepted or failed; called by the client."""
        if error is not None:
            self.error = self.error or error
        self.give_up(1)

    def give_up(self, count: int) -> None:
        """Count messages as settled."""
        with self._lock:
            self._left -= count
            if self._left == 0:
                self.is_settled.set()


class _TopicFirst(KafkaReceiver):
    """A receiver that creates the topic first: the client rarely checks whether the topic exists by now."""

    def __init__(
        self, make_topic: Callable[[float], None], client: dict[str, Any], settings: KafkaQueue
    ) -> None:
        super().__init__(client, settings.topic, settings.timeout_seconds)
        self._make_topic = make_topic

    def receive(self, limit: int, wait_seconds: float) -> Any:
        self._make_topic(time.monotonic() + self._timeout_seconds)
        return super().receive(limit, wait_seconds)
