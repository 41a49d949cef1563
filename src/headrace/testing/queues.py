"""The test suite for every Queue, as a pytest plug-in.

In a test file, for a queue of your own::

    from headrace.testing.opener import Opener
    from headrace.testing.queues import QueueSuite

    class TestMyQueue(QueueSuite):
        @pytest.fixture
        def opener(self, tmp_path):
            arguments = {"path": str(tmp_path), "visibility_seconds": self.visibility_seconds}
            return Opener("my_package.queues:open_mine", arguments)

and, for detailed assertion messages, ``pytest_plugins = ["headrace.testing.queues"]`` in ``conftest.py``.
Each test needs an empty queue of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from headrace.base.errors import InvalidRequest, Overloaded, TooLarge
from headrace.storage.queues.queue import (
    LARGEST_BODY_BYTES,
    LONGEST_KEY_BYTES,
    Delivery,
    Message,
    Queue,
    Receiver,
)
from headrace.testing.opener import Opener
from headrace.testing.queue_process import (
    LONGEST_WAIT_SECONDS,
    QueueProcess,
    acknowledge,
    has_received,
    messages,
    received,
    running,
    told,
    working,
)

_LEAST_SHARE = 0.8  # of the visibility timeout, which some queues count from the last sign of life


class QueueSuite:
    """Tests of the contract of Queue; a subclass names the queue by a fixture ``opener``.

    Attributes:
        visibility_seconds: Visibility timeout of a silent receiver; the opener must set it.
        is_shared: Whether two queues opened alike share their messages, also between processes.
        is_ordered: Whether messages of different keys come in their order.
        drops_known: Whether a message is dropped while one with the same key and body waits.
        most_messages: Maximum number of waiting messages that the opener has set; 0 for no limit.
        joining_seconds: Longest time until several receivers that start together share the work.
    """

    visibility_seconds: float = 1.0
    is_shared: ClassVar[bool] = True
    is_ordered: ClassVar[bool] = True
    drops_known: ClassVar[bool] = True
    most_messages: ClassVar[int] = 0
    joining_seconds: float = 0.0

    @pytest.fixture
    def opener(self) -> Opener:
        """Return the opener of the queue."""
        raise NotImplementedError("a subclass must define the fixture opener")

    @pytest.fixture
    def queue(self, opener: Opener) -> Iterator[Queue]:
        """Yield the open queue."""
        queue: Queue = opener.open()
        yield queue
        queue.close()

    @pytest.fixture
    def receiver(self, queue: Queue) -> Iterator[Receiver]:
        """Yield a receiver of the queue."""
        receiver = queue.receiver()
        yield receiver
        receiver.close()

    @pytest.fixture
    def other(self, queue: Queue) -> Iterator[Receiver]:
        """Yield another receiver of the queue."""
        receiver = queue.receiver()
        yield receiver
        receiver.close()

    # Publishing and receiving

    def test_what_is_published_is_received_once(self, queue: Queue, receiver: Receiver) -> None:
        begun = datetime.now(UTC).timestamp()
        queue.publish(messages(0, 20))
        found = received([receiver], 20)
        assert sorted(told(found)) == sorted(messages(0, 20))
        if self.is_ordered:
            assert told(found) == messages(0, 20)
        ended = datetime.now(UTC).timestamp()
        assert all(begun - 1 <= delivery.queued <= ended + 1 for _, delivery in found)
        assert receiver.receive(10, 0.1) == []
        assert acknowledge(found) == 20
        assert receiver.receive(10, 0.1) == []
        self._comes_to(queue, lambda count, _: count == 0)

    def test_no_more_are_received_than_are_asked_for(self, queue: Queue, receiver: Receiver) -> None:
        queue.publish(messages(0, 10))
        assert len(received([receiver], 1, limit=1)) == 1
        found = receiver.receive(4, LONGEST_WAIT_SECONDS)
        assert 1 <= len(found) <= 4
        received([receiver], 9 - len(found))

    def test_nothing_is_published_by_nothing(self, queue: Queue, receiver: Receiver) -> None:
        queue.publish([])
        assert queue.depth() == (0, 0.0)
        assert receiver.receive(1, 0.0) == []
        assert receiver.acknowledge([]) == 0
        receiver.release([])
        receiver.keep()

    def test_who_waits_is_given_what_comes(self, queue: Queue, receiver: Receiver) -> None:
        queue.publish(messages(0, 1))
        acknowledge(received([receiver], 1))  # it has joined
        found: list[Delivery] = []
        with running(lambda: found.extend(receiver.receive(10, LONGEST_WAIT_SECONDS))):
            queue.publish(messages(1, 1))
        assert [delivery.message for delivery in found] == messages(1, 1)

    def test_who_waits_for_nothing_is_told_in_time(self, receiver: Receiver) -> None:
        begun = time.monotonic()
        assert receiver.receive(10, 0.3) == []
        assert time.monotonic() - begun > 0.2

    def test_keys_and_bodies_are_any_bytes(self, queue: Queue, receiver: Receiver) -> None:
        wanted = [
            Message(b"\0", b""),
            Message(b"\xff" * LONGEST_KEY_BYTES, bytes(range(256)) * (LARGEST_BODY_BYTES // 256)),
            Message(b"\0" * LONGEST_KEY_BYTES, b"\0"),
            Message(b"../../etc/passwd\r\n", b"\xff\xfe"),
        ]
        queue.publish(wanted)
        found = received([receiver], len(wanted))
        assert sorted(told(found)) == sorted(wanted)
        assert acknowledge(found) == len(wanted)

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            (Message(b"", b"1"), InvalidRequest),
            (Message(b"k" * (LONGEST_KEY_BYTES + 1), b"1"), TooLarge),
            (Message(b"k", b"1" * (LARGEST_BODY_BYTES + 1)), TooLarge),
            (Message("text", b"1"), InvalidRequest),  # type: ignore[arg-type]
        ],
        ids=["empty key", "long key", "large body", "text"],
    )
    def test_a_message_that_cannot_be_is_refused_with_all(
        self, queue: Queue, wrong: Message, error: type[InvalidRequest]
    ) -> None:
        with pytest.raises(error):
            queue.publish([Message(b"before", b"1"), wrong])
        assert queue.depth().messages == 0

    @pytest.mark.parametrize(("limit", "wait_seconds"), [(0, 0.0), (1, -1.0), (1, float("nan"))])
    def test_what_nobody_can_mean_is_refused(
        self, receiver: Receiver, limit: int, wait_seconds: float
    ) -> None:
        with pytest.raises(InvalidRequest):
            receiver.receive(limit, wait_seconds)

    # One key

    def test_messages_of_a_key_keep_their_order(self, queue: Queue, receiver: Receiver) -> None:
        wanted = [Message(b"key", b"%d" % number) for number in range(10)]
        queue.publish(wanted[:4])
        queue.publish(wanted[4:])
        found: list[Message] = []
        while len(found) < len(wanted):
            some = received([receiver], 1)
            found += told(some)
            acknowledge(some)
        assert found == wanted

    def test_messages_of_a_key_are_with_one_receiver_at_a_time(self, queue: Queue) -> None:
        wanted = [Message(b"key-%d" % (number % 3), b"%d" % number) for number in range(60)]
        at_work: Counter[bytes] = Counter()
        done: list[Message] = []
        lock, joined = threading.Lock(), threading.Barrier(4)

        def work() -> None:
            receiver = queue.receiver()
            self._join(receiver)
            joined.wait(LONGEST_WAIT_SECONDS)
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while len(done) < len(wanted) and time.monotonic() < deadline:
                found = receiver.receive(5, 0.1)
                keys = {delivery.message.key for delivery in found}
                with lock:
                    at_work.update(keys)
                    assert all(at_work[key] == 1 for key in keys), at_work
                    done.extend(delivery.message for delivery in found)
                time.sleep(0.002)  # the work on the messages
                with lock:
                    at_work.subtract(keys)
                assert receiver.acknowledge(found) == len(found)
            receiver.close()

        with running(work, work, work):
            joined.wait(LONGEST_WAIT_SECONDS)
            queue.publish(wanted)
        assert sorted(done) == sorted(wanted)
        for key in {message.key for message in wanted}:
            own = [message for message in done if message.key == key]
            assert own == [message for message in wanted if message.key == key]

    def test_what_is_known_is_dropped(self, queue: Queue, receiver: Receiver) -> None:
        if not self.drops_known:
            pytest.skip("the queue does not drop known messages")
        same, others = Message(b"a", b"1"), [Message(b"a", b"2"), Message(b"b", b"1")]
        queue.publish([same, same, *others, same])
        assert queue.depth().messages == 3
        queue.publish([same, *others])
        found = received([receiver], 2)
        assert told(found) == [same, others[1]]
        queue.publish([same, *others])
        assert queue.depth().messages == 3
        acknowledge(found)
        queue.publish([same])
        assert queue.depth().messages == 2
        assert told(received([receiver], 1)) == [others[0]]

    # Visibility

    def _join(self, *receivers: Receiver) -> None:
        """Have receivers share the work, before there is any."""
        end = time.monotonic() + self.joining_seconds
        while time.monotonic() < end:
            for receiver in receivers:
                assert receiver.receive(1, 0.1) == []

    def _held(
        self, queue: Queue, receiver: Receiver, other: Receiver
    ) -> tuple[list[tuple[Receiver, Delivery]], Receiver, Receiver, float]:
        """Publish three messages; return them, their holder, the other receiver, and the start time."""
        self._join(receiver, other)
        begun = time.monotonic()
        queue.publish(messages(0, 3))
        found = received([receiver, other], 3)
        assert len({id(one) for one, _ in found}) == 1, "one receiver must get all messages"
        return found, *((receiver, other) if found[0][0] is receiver else (other, receiver)), begun

    def test_what_is_received_is_out_of_sight_until_its_receiver_was_silent(
        self, queue: Queue, receiver: Receiver, other: Receiver
    ) -> None:
        found, holder, idle, begun = self._held(queue, receiver, other)
        again = received([idle], 1)
        assert time.monotonic() - begun > _LEAST_SHARE * self.visibility_seconds
        again += received([idle], 3 - len(again))
        assert sorted(told(again)) == sorted(told(found))
        assert acknowledge(found) == 0, "the receiver was silent for too long"
        holder.release([delivery for _, delivery in found])
        assert acknowledge(again) == 3, "a late acknowledgement must not affect the new deliveries"
        self._comes_to(queue, lambda count, _: count == 0)

    def test_a_receiver_that_was_silent_is_given_it_again_itself(
        self, queue: Queue, receiver: Receiver
    ) -> None:
        queue.publish(messages(0, 3))
        assert sorted(told(received([receiver], 3))) == messages(0, 3)
        time.sleep(1.2 * self.visibility_seconds)
        again = received([receiver], 3)
        assert sorted(told(again)) == messages(0, 3)
        assert acknowledge(again) == 3

    def test_who_keeps_may_work_for_any_time(self, queue: Queue, receiver: Receiver, other: Receiver) -> None:
        found, holder, idle, _ = self._held(queue, receiver, other)
        end = time.monotonic() + 1.4 * self.visibility_seconds
        while time.monotonic() < end:
            holder.keep()
            assert idle.receive(10, self.visibility_seconds / 10) == []
        assert acknowledge(found) == 3
        self._comes_to(queue, lambda count, _: count == 0)

    def test_what_is_released_is_delivered_again_at_once(
        self, queue: Queue, receiver: Receiver, other: Receiver
    ) -> None:
        queue.publish(messages(0, 4))
        found = received([receiver], 4)
        receiver.release([delivery for _, delivery in found[:2]])
        again = received([receiver, other], 2)  # the receiver stays alive, as it receives all the while
        assert sorted(told(again)) == sorted(told(found[:2]))
        assert acknowledge(again) == 2
        assert acknowledge(found[2:]) == 2
        self._comes_to(queue, lambda count, _: count == 0)

    def test_who_leaves_gives_back_what_he_has(self, queue: Queue, other: Receiver) -> None:
        receiver = queue.receiver()
        queue.publish(messages(0, 4))
        found = received([receiver], 4)
        assert acknowledge(found[:1]) == 1
        receiver.close()
        again = received([other], 3)
        assert sorted(told(again)) == sorted(told(found[1:]))
        assert acknowledge(again) == 3

    def test_only_some_are_acknowledged(self, queue: Queue, other: Receiver) -> None:
        receiver = queue.receiver()
        queue.publish(messages(0, 10))
        found = received([receiver], 10)
        assert acknowledge(found[5:]) == 5
        assert acknowledge(found[5:]) in {0, 5}
        self._comes_to(queue, lambda count, _: count >= 5)
        receiver.close()
        again = received([other], 5)
        assert {*told(found[:5])} <= {*told(again)}

    # Removing

    def test_what_is_removed_is_delivered_no_more(self, queue: Queue, receiver: Receiver) -> None:
        wanted = [Message(b"a", b"1"), Message(b"b", b"2"), Message(b"a", b"3")]
        queue.publish(wanted)
        if not queue.remove([b"a", b"nobody's"]):
            pytest.skip("the queue cannot drop messages: its receivers must skip them")
        assert told(received([receiver], 1)) == [wanted[1]]
        assert queue.depth().messages == 1
        queue.publish([wanted[0]])
        assert told(received([receiver], 1)) == [wanted[0]]

    def test_what_is_removed_while_somebody_has_it_stays_with_him(
        self, queue: Queue, receiver: Receiver, other: Receiver
    ) -> None:
        queue.publish([Message(b"a", b"1"), Message(b"a", b"2")])
        found = received([receiver], 1)
        if not queue.remove([b"a"]):
            pytest.skip("the queue cannot drop messages: its receivers must skip them")
        queue.publish([Message(b"a", b"1")])
        assert other.receive(10, 0.1) == [], "another receiver holds a message of this key"
        receiver.release([delivery for _, delivery in found])
        for _ in range(2):  # the released message, then the new one
            again = received([other], 1)
            assert told(again) == [Message(b"a", b"1")]
            assert acknowledge(again) == 1
        assert queue.depth().messages == 0

    # Depth and limits

    def test_the_depth_counts_what_nobody_has_acknowledged(self, queue: Queue, receiver: Receiver) -> None:
        assert queue.depth() == (0, 0.0)
        queue.publish(messages(0, 100))
        time.sleep(0.3)
        self._comes_to(queue, lambda count, oldest: count == 100 and 0.2 < oldest < LONGEST_WAIT_SECONDS)
        found = received([receiver], 100)
        self._comes_to(queue, lambda count, _: count == 100)
        acknowledge(found[:40])
        if self.is_ordered:
            self._comes_to(queue, lambda count, _: count == 60)
        acknowledge(found[40:])
        self._comes_to(queue, lambda count, oldest: count == 0 and oldest == 0)

    def _comes_to(self, queue: Queue, is_right: Callable[[int, float], bool]) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while not is_right(*queue.depth()):
            assert time.monotonic() < deadline, queue.depth()
            time.sleep(0.05)

    def test_a_full_queue_takes_all_or_nothing(self, queue: Queue, receiver: Receiver) -> None:
        most = self.most_messages
        if not most:
            pytest.skip("the queue was opened without a limit")
        queue.publish(messages(0, most - 1))
        with pytest.raises(Overloaded, match="max_messages"):
            queue.publish(messages(most, 2))
        if self.drops_known:
            queue.publish(messages(0, most))
            queue.publish(messages(0, most))
        found = received([receiver], most - 1)
        acknowledge(found)
        queue.publish(messages(most, 1))

    # Concurrency

    def test_many_threads_publish_and_many_receive(self, queue: Queue) -> None:
        count, publishers = 300, 4
        done: list[Message] = []
        joined = threading.Barrier(3 + publishers)

        def publish(first: int) -> None:
            joined.wait(LONGEST_WAIT_SECONDS)
            for number in range(first, first + count, 10):
                queue.publish(messages(number, 10))

        def receive() -> None:
            receiver = queue.receiver()
            self._join(receiver)
            joined.wait(LONGEST_WAIT_SECONDS)
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while len(done) < count * publishers and time.monotonic() < deadline:
                found = receiver.receive(37, 0.1)
                done.extend(delivery.message for delivery in found)
                assert receiver.acknowledge(found) == len(found)
            receiver.close()

        parts = [lambda first=first: publish(first) for first in range(0, count * publishers, count)]
        with running(*parts, receive, receive, receive):
            pass
        assert sorted(done) == sorted(messages(0, count * publishers))
        self._comes_to(queue, lambda count, _: count == 0)

    # Processes

    def _other_process(self, opener: Opener) -> QueueProcess:
        if not self.is_shared:
            pytest.skip("queue objects do not share their messages")
        return QueueProcess(opener)

    def test_what_is_published_survives_its_publisher(
        self, opener: Opener, queue: Queue, receiver: Receiver
    ) -> None:
        with self._other_process(opener) as publisher:
            publisher.publish(messages(0, 100))
            publisher.kill()
        found = received([receiver], 100)
        assert sorted(told(found)) == sorted(messages(0, 100))
        assert acknowledge(found) == 100

    def test_what_waits_is_there_when_all_have_gone(self, opener: Opener) -> None:
        if not self.is_shared:
            pytest.skip("queue objects do not share their messages")
        queue: Queue = opener.open()
        queue.publish(messages(0, 30))
        receiver = queue.receiver()
        assert acknowledge(received([receiver], 10, limit=10)[:10]) == 10
        queue.close()
        queue = opener.open()
        found = received([queue.receiver()], 20)
        assert len({*told(found)}) == 20
        queue.close()

    def test_what_a_killed_receiver_had_is_delivered_again_when_its_time_is_over(
        self, opener: Opener, queue: Queue, receiver: Receiver
    ) -> None:
        with self._other_process(opener) as killed:
            killed.publish(messages(0, 10))
            silent = has_received(killed, 10)
            killed.kill()
        again = received([receiver], 10)
        assert time.monotonic() - silent > _LEAST_SHARE * self.visibility_seconds
        assert sorted(told(again)) == sorted(messages(0, 10))
        assert acknowledge(again) == 10

    def test_what_a_killed_receiver_had_acknowledged_is_not(
        self, opener: Opener, queue: Queue, receiver: Receiver
    ) -> None:
        with self._other_process(opener) as killed:
            killed.publish(messages(0, 10))
            has_received(killed, 10)
            assert killed.acknowledge() == 10
            killed.kill()
        queue.publish(messages(10, 1))
        again = received([receiver], 1)
        assert told(again) == messages(10, 1)
        assert acknowledge(again) == 1
        end = time.monotonic() + 1.2 * self.visibility_seconds
        while time.monotonic() < end:
            assert receiver.receive(10, 0.2) == []

    def test_two_processes_share_the_work(self, opener: Opener, queue: Queue) -> None:
        count = 2000
        with (
            self._other_process(opener) as one,
            self._other_process(opener) as two,
            working(one, 7) as first,
            working(two, 7) as second,
        ):
            time.sleep(self.joining_seconds)
            for number in range(0, count, 50):
                queue.publish(messages(number, 50))
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while not (first and second):  # one of them may not have been scheduled all the while
                assert time.monotonic() < deadline, "one receiver gets all messages"
                queue.publish(messages(count, 1))
                count += 1
                time.sleep(0.01)
            while len(first) + len(second) < count:  # a depth may date from before they were published
                assert time.monotonic() < deadline, f"received only {len(first) + len(second)} of {count}"
                time.sleep(0.01)
            self._comes_to(queue, lambda waiting, _: waiting == 0)
        assert sorted(first + second) == sorted(messages(0, count)), "each message must be received once"
