"""Publishing to Kafka without a broker: what the producer does not take is refused."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from headrace.base.errors import Unavailable
from headrace.storage.queues.kafka import KafkaMessages
from headrace.storage.settings import KafkaQueue
from headrace.testing.queue_process import messages


def test_messages_that_find_no_room_in_the_producer_are_not_accepted() -> None:
    settings = KafkaQueue(servers=("127.0.0.1:1",), create=False, timeout_seconds=0.1)
    queue = KafkaMessages(settings)
    full = Producer({"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 1, "log_level": 0})
    full.produce(settings.topic, b"first")
    queue._producer = full
    queue._depth._read = time.monotonic() + 60  # no broker can be asked how many messages wait
    with pytest.raises(Unavailable, match=r"^Kafka: cannot publish: the producer's buffer stayed full"):
        queue.publish(messages(0, 2))
    full.purge()
    queue.close()
