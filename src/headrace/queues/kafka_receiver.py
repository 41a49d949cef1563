"""A receiver of a Kafka topic: a member of its consumer group, which commits what was acknowledged.

Of each partition that it has, it knows what it has received and nobody has acknowledged. The offset that is
committed is that of the first such message, so that none is lost; what is acknowledged behind it is delivered
again if the receiver ends before it. A partition that the group takes away is no longer its own, nor is what
it has received of it: another has that now.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Collection
from contextlib import suppress
from threading import RLock
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from headrace.errors import HeadraceError, Unavailable
from headrace.queues.kafka_clients import Refusal, made, reason, unavailable
from headrace.queues.queue import Delivery, Message, check_receive

_SLICE_SECONDS = 0.1  # a client that waits can neither be interrupted nor used by another thread
_FIRST_COMMIT_SLICE_SECONDS, _LONGEST_COMMIT_SLICE_SECONDS = 0.001, 0.02
# What whoever receives can do something about; the client tries again with all else.
_TOLD = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED))
# The group has gone on without this member: what it has, others have.
_NOT_A_MEMBER = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,  # the client's own errors are named so
    )
)


class _Receipt(NamedTuple):
    """What a delivery is known by.

    Attributes:
        partition: Its number.
        offset: Where in it the message is.
        turn: Which of the times it is that the receiver has the partition.
    """

    partition: int
    offset: int
    turn: int


class _Partition:
    """A partition that the receiver has.

    Attributes:
        turn: Which of the times it is.
        pending: What was received, by offset in its order, and whether it was acknowledged; from the first
            that was not.
        wanted: The offset that is to be committed; below 0 if nothing was acknowledged.
        committed: The one that is.
    """

    __slots__ = ("committed", "pending", "turn", "wanted")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.pending: OrderedDict[int, bool] = OrderedDict()
        self.wanted = self.committed = -1

    def acknowledge(self, offset: int) -> None:
        """Note that a message is done, and how far all are."""
        self.pending[offset] = True
        while self.pending:
            first, is_done = next(iter(self.pending.items()))
            if not is_done:
                break
            del self.pending[first]
            self.wanted = next(iter(self.pending), first + 1)

    def is_own(self, receipt: _Receipt) -> bool:
        """Whether a message is still the receiver's, acknowledged or not, as far as the broker may know."""
        if receipt.turn != self.turn:
            return False
        return receipt.offset in self.pending or self.committed <= receipt.offset < self.wanted


class KafkaReceiver:
    """A receiver of KafkaMessages."""

    def __init__(self, client: dict[str, Any], topic: str, timeout_seconds: float) -> None:
        """Have received nothing; the group is joined by the first ``receive``.

        Args:
            client: What the consumer is told.
            topic: What it receives from.
            timeout_seconds: How long one call may take.
        """
        self._client = {**client, "error_cb": self._told, "on_commit": self._on_commit}
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._silent_seconds = client["max.poll.interval.ms"] / 1000
        self._lock = RLock()
        self._consumer: Consumer | None = None
        self._polled = 0.0
        self._turns = itertools.count()
        self._partitions: dict[int, _Partition] = {}
        self._again: deque[Delivery] = deque()  # released
        self._ahead: deque[KafkaMessage] = deque()  # what came when something else was asked for
        self._failed: KafkaError | None = None  # what the next one that receives nothing is told
        self._commit_error: KafkaError | None = None
        self._commits_left = 0
        self._is_unreachable = False
        self._refusal = Refusal()

    def receive(self, limit: int, wait_seconds: float) -> list[Delivery]:
        """See Receiver."""
        check_receive(limit, wait_seconds)
        end = time.monotonic() + wait_seconds
        while True:
            with self._lock:
                found = self._received(limit, end)
                failed, self._failed = self._failed, None
            if found:
                return found
            if failed is not None:
                raise unavailable("cannot receive", failed.str())
            if time.monotonic() >= end:
                self._check_reachable()
                return []

    def keep(self) -> None:
        """See Receiver."""
        with self._lock:
            if self._consumer is not None and not self._was_silent():
                self._poll(self._consumer, 0)

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """See Receiver; what is behind something unacknowledged in its partition is committed with that."""
        with self._lock:
            if self._consumer is None or not deliveries:
                return 0
            if self._was_silent():
                self._leave()
                return 0
            self._poll(self._consumer, 0)  # what was taken away is told
            own = self._own(deliveries)
            for receipt in own:
                partition = self._partitions[receipt.partition]
                if receipt.offset in partition.pending:
                    partition.acknowledge(receipt.offset)
            done = set(own)
            self._again = deque(one for one in self._again if one.receipt not in done)
            self._commit(self._consumer)
            return sum(receipt.partition in self._partitions for receipt in own)

    def release(self, deliveries: Collection[Delivery]) -> None:
        """See Receiver; this one is given them again, as long as the partition is its own."""
        with self._lock:
            own = set(self._own(deliveries))
            released = {
                delivery.receipt: delivery
                for delivery in deliveries
                if delivery.receipt in own and not self._is_acknowledged(delivery.receipt)
            }
            waiting = {delivery.receipt: delivery for delivery in self._again}
            self._again = deque(one for _, one in sorted((waiting | released).items()))

    def close(self) -> None:
        """See Receiver."""
        with self._lock:
            self._leave()

    # ---- with the lock ----------------------------------------------------------------------------

    def _received(self, limit: int, end: float) -> list[Delivery]:
        """What is there now, or comes within a slice of time."""
        consumer = self._joined()
        found = self._waiting_ones(limit)
        if not found:
            self._poll(consumer, max(0.0, min(_SLICE_SECONDS, end - time.monotonic())))
            found = self._waiting_ones(limit)
        if found and len(found) < limit and self._consumer is consumer:
            self._take(consumer.consume(limit - len(found), 0))
            found += self._waiting_ones(limit - len(found))
        self._polled = time.monotonic()
        # Taking may have told that a partition is gone: what was taken of it before is another's.
        return [delivery for delivery in found if self._own([delivery])]

    def _joined(self) -> Consumer:
        """The consumer; a new one if there is none, or this one was silent and is no member any more."""
        if self._consumer is not None and self._was_silent():
            self._leave()
        if self._consumer is None:
            self._consumer = made(Consumer, self._client)
            self._consumer.subscribe([self._topic], on_revoke=self._on_revoke, on_lost=self._on_revoke)
            self._polled = time.monotonic()
        return self._consumer

    def _was_silent(self) -> bool:
        return bool(time.monotonic() >= self._polled + self._silent_seconds)

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):
                consumer.close()
        self._drop(list(self._partitions))

    def _drop(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)
        self._again = deque(one for one in self._again if self._own([one]))
        gone = set(partitions)
        self._ahead = deque(message for message in self._ahead if message.partition() not in gone)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop([one.partition for one in partitions])

    def _poll(self, consumer: Consumer, seconds: float) -> None:
        """Hear what the group says, and take a message if one comes with it."""
        message = consumer.poll(seconds)
        self._polled = time.monotonic()
        if message is not None:
            self._take([message])

    def _take(self, messages: Collection[KafkaMessage]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self._ahead.append(message)
                self._is_unreachable = False
                self._refusal.said = ""
            elif error.fatal():
                self._failed = error
                self._leave()  # the next call joins anew
            elif error.code() in _TOLD:
                self._failed = error

    def _waiting_ones(self, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._again and len(found) < limit:
            found.append(self._again.popleft())
        while self._ahead and len(found) < limit:
            found.append(self._delivery(self._ahead.popleft()))
        return found

    def _delivery(self, message: KafkaMessage) -> Delivery:
        number, offset = message.partition(), message.offset()
        if number is None or offset is None:
            raise Unavailable("Kafka: a message without a place came")
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _Partition(next(self._turns))
        partition.pending[offset] = False
        receipt = _Receipt(number, offset, partition.turn)
        _, milliseconds = message.timestamp()
        return Delivery(Message(message.key() or b"", message.value() or b""), milliseconds / 1000, receipt)

    def _own(self, deliveries: Collection[Delivery]) -> list[_Receipt]:
        receipts = {one.receipt for one in deliveries if isinstance(one.receipt, _Receipt)}
        return sorted(
            receipt
            for receipt in receipts
            if (partition := self._partitions.get(receipt.partition)) and partition.is_own(receipt)
        )

    def _is_acknowledged(self, receipt: object) -> bool:
        if not isinstance(receipt, _Receipt):
            return True
        return bool(self._partitions[receipt.partition].pending.get(receipt.offset, True))

    # ---- committing -------------------------------------------------------------------------------

    def _commit(self, consumer: Consumer) -> None:
        """Tell the broker how far all is acknowledged, and wait until it says that it knows.

        Raises:
            Unavailable: It did not, in time.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while wanted := self._uncommitted():
            self._commit_error, self._commits_left = None, 1
            try:
                consumer.commit(offsets=wanted, asynchronous=True)
            except KafkaException as error:
                raise unavailable("cannot commit", reason(error)) from error
            slice_seconds = _FIRST_COMMIT_SLICE_SECONDS
            while self._commits_left and time.monotonic() < deadline:
                self._poll(consumer, slice_seconds)  # it does not return for an answer alone
                slice_seconds = min(2 * slice_seconds, _LONGEST_COMMIT_SLICE_SECONDS)
            error_told = self._commit_error
            if self._commits_left:
                raise unavailable("cannot commit", "no broker answered in time")
            if error_told is None:
                self._note_committed(wanted)
            elif error_told.code() in _NOT_A_MEMBER:
                self._leave()
            elif time.monotonic() >= deadline:
                raise unavailable("cannot commit", error_told.str())
            else:  # the group is changing, or its coordinator
                self._poll(consumer, _LONGEST_COMMIT_SLICE_SECONDS)

    def _uncommitted(self) -> list[TopicPartition]:
        return [
            TopicPartition(self._topic, number, partition.wanted)
            for number, partition in self._partitions.items()
            if partition.wanted > partition.committed
        ]

    def _note_committed(self, offsets: list[TopicPartition]) -> None:
        for one in offsets:
            partition = self._partitions.get(one.partition)
            if partition is not None:
                partition.committed = max(partition.committed, one.offset)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits_left = 0
        self._commit_error = error or next((one.error for one in partitions if one.error), None)

    # ---- whether there is anybody -------------------------------------------------------------------

    def _told(self, error: KafkaError) -> None:
        self._refusal(error)
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            self._is_unreachable = True

    def _check_reachable(self) -> None:
        """Whoever was given nothing learns when that is because no broker answers.

        Raises:
            Unavailable: None does.
        """
        with self._lock:
            if not self._is_unreachable or self._consumer is None:
                return
            try:
                self._consumer.list_topics(self._topic, timeout=self._timeout_seconds / 2)
            except KafkaException as error:
                raise unavailable("cannot receive", self._refusal.said or reason(error)) from error
            self._is_unreachable = False
            self._refusal.said = ""


def closed(receivers: Collection[KafkaReceiver]) -> None:
    """Close receivers."""
    for receiver in receivers:
        with suppress(HeadraceError):
            receiver.close()
