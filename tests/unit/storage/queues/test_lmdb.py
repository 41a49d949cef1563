"""The LMDB queue's visibility time over boots and jumps of clocks, its limits, its place on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, Overloaded, Unavailable
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.queues.lmdb_tables import Clocks
from headrace.storage.queues.queue import Delivery, Message
from headrace.storage.settings import LmdbQueue
from headrace.testing.queue_process import messages, running

BOOT, NEXT_BOOT = b"a" * 16, b"b" * 16


class Turned:
    """A clock that the test turns."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def opened(path: Path, clocks: Clocks | None = None, **settings: object) -> LmdbMessages:
    table = {"path": path / "queue", "sync": False, "visibility_seconds": 30.0, **settings}
    return LmdbMessages(LmdbQueue(**table), clocks)  # type: ignore[arg-type]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LmdbMessages]:
    queue = opened(tmp_path)
    yield queue
    queue.close()


@pytest.mark.parametrize(
    ("boot", "now", "is_over"),
    [
        (BOOT, 1000.0 + 29.0, False),
        (BOOT, 1000.0 + 30.0, True),
        (NEXT_BOOT, 1000.0, True),
        (NEXT_BOOT, 5.0, True),
        (NEXT_BOOT, 1e9, True),
        (BOOT, 5.0, True),  # where the system does not say which boot it is
    ],
)
def test_visibility_ends_with_its_time_and_with_the_boot(
    tmp_path: Path, boot: bytes, now: float, is_over: bool
) -> None:
    queue = opened(tmp_path, Clocks(Turned(1000.0), BOOT))
    queue.publish(messages(0, 3))
    assert len(queue.receiver().receive(2, 0.0)) == 2
    queue._file.close()  # as a kill leaves it
    queue = opened(tmp_path, Clocks(Turned(now), boot))
    found = queue.receiver().receive(10, 0.0)
    assert [delivery.message for delivery in found] == messages(0 if is_over else 2, 3 if is_over else 1)
    queue.close()


def test_held_messages_are_counted_with_those_of_silent_receivers(tmp_path: Path) -> None:
    monotonic = Turned(1000.0)
    queue = opened(tmp_path, Clocks(monotonic, BOOT))
    assert queue.held() == (0, 0, 0.0, 0.0)
    queue.publish(messages(0, 5))
    one, two = queue.receiver(), queue.receiver()
    first = one.receive(2, 0.0)
    monotonic.now += 10
    assert len(two.receive(1, 0.0)) == 1
    assert queue.held() == (3, 0, 0.0, 0.0)
    monotonic.now += 10  # one has been silent for 20 of 30 s, the other for 10 s
    assert queue.held() == (3, 2, 20.0, 10.0)
    monotonic.now += 15  # what one had is anybody's now
    assert queue.held() == (3, 3, 25.0, 5.0)
    assert len(two.receive(5, 0.0)) == 4
    assert one.acknowledge(first) == 0
    assert queue.held() == (5, 0, 0.0, 0.0)
    queue.close()


@pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0, 1e9, -1e9])
def test_a_wall_clock_that_jumps_neither_strands_nor_repeats(tmp_path: Path, jump_seconds: float) -> None:
    monotonic, wall = Turned(1000.0), Turned(1.7e9)
    queue = opened(tmp_path, Clocks(monotonic, BOOT, wall))
    one, two = queue.receiver(), queue.receiver()
    queue.publish(messages(0, 2))
    found = one.receive(1, 0.0)
    wall.now += jump_seconds
    assert queue.depth() == (2, max(0.0, jump_seconds))
    queue.publish(messages(2, 1))
    assert [delivery.message for delivery in two.receive(10, 0.0)] == messages(1, 2)
    assert one.acknowledge(found) == 1
    monotonic.now += 31
    again = one.receive(10, 0.0)
    assert [delivery.message for delivery in again] == messages(1, 2)
    queue.close()


def test_a_full_file_refuses_messages_and_takes_acknowledgements(tmp_path: Path) -> None:
    queue = opened(tmp_path, largest_bytes=2**20)
    receiver = queue.receiver()
    for _ in range(3):
        published, refusal = 0, ""
        while published < 10_000:
            some = [Message(b"%d" % number, b"b" * 900) for number in range(published, published + 20)]
            try:
                queue.publish(some)
            except Unavailable as error:
                refusal = error.message
                break
            published += 20
        assert 300 < published < 10_000
        assert "largest_bytes" in refusal
        taken = []
        while found := receiver.receive(1000, 0.0):
            taken += found
        assert len(taken) == published
        assert receiver.acknowledge(taken) == published
        assert queue.depth().messages == 0
    queue.close()


def test_large_bodies_come_and_go_in_a_small_file(tmp_path: Path) -> None:
    queue = opened(tmp_path, largest_bytes=2**22)
    receiver = queue.receiver()
    for number in range(200):
        queue.publish([Message(b"%d" % number, bytes(200_000))])
        assert receiver.acknowledge(receiver.receive(10, 0.0)) == 1
    queue.close()


def test_more_messages_than_may_wait_are_refused_beside_others(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_messages=10)
    refused = []

    def publish(first: int) -> None:
        try:
            queue.publish(messages(first, 4))
        except Overloaded:
            refused.append(first)

    with running(*(lambda first=first: publish(first) for first in range(0, 40, 4))):
        pass
    assert len(refused) == 8
    assert queue.depth().messages == 8
    queue.close()


def test_the_same_directory_may_be_open_twice_in_a_process(tmp_path: Path, queue: LmdbMessages) -> None:
    other = opened(tmp_path)
    other.publish(messages(0, 1))
    other.close()
    assert [delivery.message for delivery in queue.receiver().receive(1, 0.0)] == messages(0, 1)
    with pytest.raises(ConfigError, match="other settings"):
        opened(tmp_path, sync=True)


def test_a_directory_that_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("no directory")
    with pytest.raises(ConfigError, match="cannot be created"):
        opened(tmp_path)
    (tmp_path / "queue").unlink()
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue/data.mdb").write_bytes(b"nonsense" * 10_000)
    with pytest.raises(ConfigError, match="is not an LMDB file"):
        opened(tmp_path)


def test_a_file_that_is_cut_is_refused_in_words(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.publish(messages(0, 1000))
    queue.close()
    with (tmp_path / "queue/data.mdb").open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(ConfigError, match="damaged"):
        opened(tmp_path)


def test_a_key_with_very_many_messages_costs_no_more_than_others(queue: LmdbMessages) -> None:
    queue.publish([Message(b"hot", b"%d" % number) for number in range(20_000)] + messages(0, 5))
    receiver = queue.receiver()
    found = receiver.receive(10, 0.0)
    assert [delivery.message for delivery in found] == [Message(b"hot", b"0"), *messages(0, 5)]
    assert receiver.acknowledge(found) == 6
    for number in range(1, 50):
        found = receiver.receive(10, 0.0)
        assert [delivery.message.body for delivery in found] == [b"%d" % number]
        receiver.acknowledge(found)
    assert queue.remove([b"hot"])
    assert queue.depth().messages == 0


def test_threads_that_publish_at_once_share_commits(queue: LmdbMessages) -> None:
    begun = queue._environment.info()["last_txnid"]
    together = threading.Barrier(16)

    def publish(number: int) -> None:
        together.wait(120)
        for part in range(20):
            queue.publish(messages(number * 1000 + part, 1))

    with running(*(lambda number=number: publish(number) for number in range(16))):
        pass
    assert queue.depth().messages == 320
    assert queue._environment.info()["last_txnid"] - begun <= 320


def test_a_message_that_comes_while_a_receiver_waits_is_received_at_once(tmp_path: Path) -> None:
    """A commit that waits for the disk is told of by the file before readers see it."""
    queue = LmdbMessages(LmdbQueue(path=tmp_path))  # waits for the disk
    receiver = queue.receiver()
    for number in range(40):
        found: list[Delivery] = []
        with running(lambda found=found: found.extend(receiver.receive(10, 30.0))):
            queue.publish(messages(number, 1))
        assert [delivery.message for delivery in found] == messages(number, 1)
        receiver.acknowledge(found)
    queue.close()


def test_an_open_queue_is_not_inherited(queue: LmdbMessages) -> None:
    queue._process += 1  # as a child finds it
    with pytest.raises(FailedPrecondition, match="fork"):
        queue.publish(messages(0, 1))
    with pytest.raises(FailedPrecondition, match="fork"):
        queue.depth()
    queue._process -= 1


def test_tables_hold_nothing_when_nothing_waits(queue: LmdbMessages) -> None:
    receiver = queue.receiver()
    for first in range(0, 300, 100):
        queue.publish(messages(first, 100))
        found = receiver.receive(60, 0.0)
        receiver.release(found[:10])
        queue.remove([b"key-%d" % number for number in range(first, first + 30)])
        receiver.acknowledge(found)
        receiver.acknowledge(receiver.receive(1000, 0.0))
    with queue._environment.begin() as transaction:
        sizes = {
            name: entries(queue._environment, transaction, name) for name in (b"keys", b"held", b"ready")
        }
    assert queue.depth().messages == 0
    assert set(sizes.values()) == {0}, sizes


def entries(environment: lmdb.Environment, transaction: lmdb.Transaction, name: bytes) -> int:
    return int(transaction.stat(environment.open_db(name, transaction, create=False))["entries"])
