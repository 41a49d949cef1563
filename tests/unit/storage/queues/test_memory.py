"""The queue in memory: what it keeps of messages that are gone, and settings that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.storage.opening import open_queue
from headrace.storage.queues.kafka import KafkaMessages
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.queues.queue import Message
from headrace.storage.settings import KafkaQueue, LmdbQueue, MemoryQueue
from headrace.testing.queue_process import messages


def test_removed_messages_leave_no_state_behind() -> None:
    queue = MemoryMessages(MemoryQueue())
    for number in range(5000):
        queue.publish([Message(b"key", b"%d" % number)])
        queue.remove([b"key"])
    assert queue.depth() == (0, 0.0)
    assert len(queue._ready) < 2000
    assert not queue._known
    assert not queue._of_key
    queue.publish(messages(0, 1))
    assert [delivery.message for delivery in queue.receiver().receive(10, 0.0)] == messages(0, 1)


def test_available_messages_stay_when_others_are_removed() -> None:
    queue = MemoryMessages(MemoryQueue())
    queue.publish(messages(0, 3000))
    receiver = queue.receiver()
    held = receiver.receive(10, 0.0)
    queue.remove([b"key-%d" % number for number in range(20, 3000)])
    queue.publish([Message(b"key-0", b"next")])
    assert [delivery.message for delivery in receiver.receive(100, 0.0)] == messages(10, 10)
    assert receiver.acknowledge(held) == 10
    assert [delivery.message.body for delivery in receiver.receive(100, 0.0)] == [b"next"]


def test_a_receiver_that_closes_twice_gives_back_once() -> None:
    queue = MemoryMessages(MemoryQueue())
    queue.publish(messages(0, 2))
    receiver = queue.receiver()
    receiver.receive(2, 0.0)
    receiver.close()
    receiver.close()
    assert len(queue.receiver().receive(10, 0.0)) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"visibility_seconds": 5.0}, r"queue\.visibility_seconds: expected 6 to 1800 seconds"),
        ({"servers": ()}, r"queue\.servers"),
        ({"servers": ("no-port",)}, r"queue\.servers"),
        ({"servers": ("a:1,b:2",)}, r"queue\.servers"),
        ({"servers": ("a:70000",)}, r"queue\.servers"),
        ({"topic": "a b"}, r"queue\.topic"),
        ({"group": ""}, r"queue\.group"),
        ({"partitions": 0}, r"queue\.partitions"),
        ({"replication": 0}, r"queue\.replication"),
        ({"user": "a"}, r"queue\.password_file: expected a file if user is set, .*, got None$"),
        ({"password_file": Path("a")}, r"queue\.password_file"),
        ({"tls": True, "key_file": Path("a")}, r"queue\.key_file"),
        ({"ca_file": Path("a")}, r"queue\.tls"),
        ({"timeout_seconds": 0.0}, r"queue\.timeout_seconds"),
        ({"max_messages": 0}, r"queue\.max_messages"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KafkaQueue(**wrong)  # type: ignore[arg-type]


def test_a_queue_is_opened_by_its_settings(tmp_path: Path) -> None:
    for settings, kind in (
        (MemoryQueue(), MemoryMessages),
        (LmdbQueue(path=tmp_path / "queue"), LmdbMessages),
        (KafkaQueue(servers=("127.0.0.1:1",)), KafkaMessages),
    ):
        queue = open_queue(settings)
        queue.close()
        assert type(queue) is kind
