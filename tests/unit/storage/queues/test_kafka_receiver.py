"""A receiver of Kafka without a broker: errors of the client are told, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message

from headrace.base.errors import Unavailable
from headrace.storage.queues.kafka_receiver import KafkaReceiver

FATAL = KafkaError(KafkaError._FATAL, "this member was fenced", fatal=True)
MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


def message(offset: int) -> Message:
    return Message("topic", 0, offset, b"key", b"body %d" % offset, timestamp=(1, 1000))


@pytest.fixture
def receiver() -> Iterator[KafkaReceiver]:
    client = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "group",
        "max.poll.interval.ms": 60_000,
        "session.timeout.ms": 100,  # closing waits so long for a commit
        "log_level": 0,
    }
    made = KafkaReceiver(client, "topic", 0.5)
    yield made
    made.close()


class FailingConsumer(Consumer):
    """A client whose third poll returns a fatal error."""

    polls = 0

    def poll(self, timeout: float = -1) -> Message | None:
        self.polls += 1
        return Message(error=FATAL) if self.polls == 3 else super().poll(timeout)


def test_an_error_that_comes_with_messages_is_raised_after_them(receiver: KafkaReceiver) -> None:
    receiver._consumer_in_group()
    receiver._buffer([message(0), Message(error=MISSING)])
    assert [one.message.body for one in receiver.receive(1, 0.0)] == [b"body 0"]
    with pytest.raises(Unavailable, match="Unknown topic"):
        receiver.receive(1, 0.0)


def test_a_fatal_error_ends_a_commit_and_is_raised_by_the_next_receive(receiver: KafkaReceiver) -> None:
    receiver._consumer, receiver._polled = FailingConsumer(receiver._client), float("inf")
    receiver._buffer([message(0)])
    found = receiver.receive(1, 0.0)
    assert receiver.acknowledge(found) == 0
    with pytest.raises(Unavailable, match="this member was fenced"):
        receiver.receive(1, 0.0)
