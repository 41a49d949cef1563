"""The backlog of a Kafka topic: messages in its partitions that the group has not committed.

Brokers are asked at most once a second. The age of the oldest message comes from reading the first waiting
message of each partition, once for each offset.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from threading import Lock
from typing import Any, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace.storage.queues.kafka_clients import Refusal, made, reason, unavailable
from headrace.storage.queues.queue import Depth
from headrace.storage.queues.queue_settings import KafkaQueue

_FRESH_SECONDS = 1.0
_POLL_SECONDS = 0.1
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
                self._count_anew(deadline)
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
                time.sleep(_POLL_SECONDS)
            else:
                self._refusal.said = ""
                return

    def _count_anew(self, deadline: float) -> None:
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
            message = consumer.poll(_POLL_SECONDS)
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
