"""A topic without a broker: the order after a resume, and what is told of an outage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from headrace.stream.kafka import topic_source
from headrace.stream.kafka.message_order import OrderLog
from headrace.stream.kafka.topic_address import Topic
from headrace.stream.kafka.topic_source import KafkaSource, Position, TopicRequest

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down")


class Client:
    """A client that returns each of its messages once."""

    def __init__(self, partitions: int, came: list[Message]) -> None:
        self.tell: Callable[[KafkaError], None] = lambda _: None
        self.came = came
        self._partitions = range(partitions)

    def list_topics(self, name: str, timeout: float) -> SimpleNamespace:
        self.tell(DOWN)
        found = SimpleNamespace(partitions=dict.fromkeys(self._partitions), error=None)
        return SimpleNamespace(topics={name: found})

    def get_watermark_offsets(self, place: object, timeout: float) -> tuple[int, int]:
        return 0, 100

    def assign(self, places: list[object]) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Message]:
        came, self.came = self.came, []
        return came

    def close(self) -> None:
        pass


@pytest.fixture
def source_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KafkaSource]:
    def make(client: Client, **asked: Any) -> KafkaSource:
        def connect(kind: str, own: dict[str, Any], *_: object) -> Client:
            client.tell = own["error_cb"]
            return client

        monkeypatch.setattr(topic_source, "make_client", connect)
        return KafkaSource(TopicRequest(topic=Topic("nowhere:1", "clicks"), **asked))

    return make


def message(partition: int, offset: int, milliseconds: int) -> Message:
    value = b"%d/%d" % (partition, offset)
    return Message("clicks", partition, offset, b"", value, timestamp=(1, milliseconds))


def test_a_partition_of_the_checkpoint_takes_part_from_where_it_was_recorded(
    source_of: Callable[..., KafkaSource], tmp_path: Path
) -> None:
    """It was found while reading ahead of the learner, whose checkpoint was saved before it took part."""
    order = OrderLog(tmp_path, "clicks", 0)
    order.joined(12, 1)
    order.close()
    came = [message(1, 0, 1), *(message(0, offset, offset) for offset in (10, 11, 12))]
    position = Position(topic="clicks", offsets=[(0, 10), (1, 0)], number=10)
    source = source_of(Client(2, came), position=position, directory=tmp_path)
    source._fetch(0.0)
    room, found = memoryview(bytearray(100)), []
    while count := source.read(room, 0.0):
        found.append(bytes(room[:count]))
    assert found == [b"0/10", b"0/11", b"1/0"]


def test_an_outage_before_the_first_message_is_told_but_not_one_while_connecting(
    source_of: Callable[..., KafkaSource], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(1, [])
    source_of(client)
    assert not caplog.messages
    client.tell(DOWN)
    assert ["does not answer" in said for said in caplog.messages] == [True]


def test_an_error_is_no_answer(
    source_of: Callable[..., KafkaSource], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(1, [Message(error=DOWN)])
    source = source_of(client)
    source._fetch(0.0)
    assert ["does not answer" in said for said in caplog.messages] == [True]
    client.came = [message(0, 0, 1)]
    source._fetch(0.0)
    assert "answers again" in caplog.messages[-1]
