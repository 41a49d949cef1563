"""A receiver of a Kafka topic: a member of the consumer group that commits acknowledged messages.

For each assigned partition it tracks the messages received and not acknowledged. It commits the offset of the
first such message, so that none is lost. If the receiver ends before acknowledging that message, all later
ones are delivered again, even acknowledged ones. When the group revokes a partition, its received messages
belong to another receiver.
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

from headrace.base.errors import HeadraceError, Unavailable
from headrace.storage.queues.kafka_clients import Refusal, made, reason, unavailable
from headrace.storage.queues.queue import Delivery, Message, check_receive

_SLICE_SECONDS = 0.1  # a waiting client cannot be interrupted or used by another thread
_FIRST_COMMIT_SLICE_SECONDS, _LONGEST_COMMIT_SLICE_SECONDS = 0.001, 0.02
# Errors that the caller can fix; the client retries after all others.
_FIXABLE = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED))
# The group has removed this member, and its partitions are assigned to others.
_NOT_A_MEMBER = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,  # errors of the client itself begin with an underscore
    )
)


class _Receipt(NamedTuple):
    """Identifier of a delivery.

    Attributes:
        partition: Number of the partition.
        offset: Offset of the message in the partition.
        assignment: Number of the assignment in which the receiver got the message.
    """

    partition: int
    offset: int
    assignment: int


class _Partition:
    """An assigned partition.

    Attributes:
        assignment: Number of the assignment.
        pending: Offsets of received messages in order, from the first that was not acknowledged; each with
            whether it was acknowledged.
        wanted: Offset to commit; negative if nothing was acknowledged.
        committed: Committed offset; negative if there is none.
    """

    __slots__ = ("assignment", "committed", "pending", "wanted")

    def __init__(self, assignment: int) -> None:
        self.assignment = assignment
        self.pending: OrderedDict[int, bool] = OrderedDict()
        self.wanted = self.committed = -1

    def acknowledge(self, offset: int) -> None:
        """Mark a message as acknowledged, and advance the offset to commit past all acknowledged ones."""
        self.pending[offset] = True
        while self.pending:
            first, is_done = next(iter(self.pending.items()))
            if not is_done:
                break
            del self.pending[first]
            self.wanted = next(iter(self.pending), first + 1)

    def is_own(self, receipt: _Receipt) -> bool:
        """Return whether this receiver holds a message: pending, or acknowledged and not yet committed."""
        if receipt.assignment != self.assignment:
            return False
        return receipt.offset in self.pending or self.committed <= receipt.offset < self.wanted


class KafkaReceiver:
    """A receiver of KafkaMessages."""

    def __init__(self, client: dict[str, Any], topic: str, timeout_seconds: float) -> None:
        """Create a receiver that holds nothing; the first ``receive`` joins the group.

        Args:
            client: Settings of the consumer.
            topic: Topic to receive from.
            timeout_seconds: Timeout of one call in seconds.
        """
        self._client = {**client, "error_cb": self._on_error, "on_commit": self._on_commit}
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._silent_seconds = client["max.poll.interval.ms"] / 1000
        self._lock = RLock()
        self._consumer: Consumer | None = None
        self._polled = 0.0
        self._assignments = itertools.count()
        self._partitions: dict[int, _Partition] = {}
        self._released: deque[Delivery] = deque()  # released messages
        self._buffered: deque[KafkaMessage] = deque()  # messages that came while polling for something else
        self._pending_error: KafkaError | None = None  # raised by the next ``receive`` that gets no message
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
                if found:
                    return found
                failed, self._pending_error = self._pending_error, None
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
        """See Receiver. Commits a message only once all before it in its partition are acknowledged."""
        with self._lock:
            if self._consumer is None or not deliveries:
                return 0
            if self._was_silent():
                self._leave()
                return 0
            self._poll(self._consumer, 0)  # runs the callbacks for revoked partitions
            own = self._own(deliveries)
            for receipt in own:
                partition = self._partitions[receipt.partition]
                if receipt.offset in partition.pending:
                    partition.acknowledge(receipt.offset)
            done = set(own)
            self._released = deque(one for one in self._released if one.receipt not in done)
            self._commit(self._consumer)
            return sum(receipt.partition in self._partitions for receipt in own)

    def release(self, deliveries: Collection[Delivery]) -> None:
        """See Receiver. Delivers the messages to this receiver again while it has the partition."""
        with self._lock:
            own = set(self._own(deliveries))
            released = {
                delivery.receipt: delivery
                for delivery in deliveries
                if delivery.receipt in own and not self._is_acknowledged(delivery.receipt)
            }
            waiting = {delivery.receipt: delivery for delivery in self._released}
            self._released = deque(one for _, one in sorted((waiting | released).items()))

    def close(self) -> None:
        """See Receiver."""
        with self._lock:
            self._leave()

    # ---- the lock is held ----------------------------------------------------------------------------

    def _received(self, limit: int, end: float) -> list[Delivery]:
        """Return the messages available now, or within one time slice."""
        consumer = self._consumer_in_group()
        found = self._take_buffered(limit)
        if not found:
            self._poll(consumer, max(0.0, min(_SLICE_SECONDS, end - time.monotonic())))
            found = self._take_buffered(limit)
        if found and len(found) < limit and self._consumer is consumer:
            self._buffer(consumer.consume(limit - len(found), 0))
            found += self._take_buffered(limit - len(found))
        self._polled = time.monotonic()
        # Polling may have run a revocation callback: skip messages of partitions revoked meanwhile.
        return [delivery for delivery in found if self._own([delivery])]

    def _consumer_in_group(self) -> Consumer:
        """Return the consumer, or a new one if there is none or this one was silent for too long."""
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
        self._released = deque(one for one in self._released if self._own([one]))
        gone = set(partitions)
        self._buffered = deque(message for message in self._buffered if message.partition() not in gone)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop([one.partition for one in partitions])

    def _poll(self, consumer: Consumer, seconds: float) -> None:
        """Run the client's callbacks and take a message if there is one."""
        message = consumer.poll(seconds)
        self._polled = time.monotonic()
        if message is not None:
            self._buffer([message])

    def _buffer(self, messages: Collection[KafkaMessage]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self._buffered.append(message)
                self._is_unreachable = False
                self._refusal.said = ""
            elif error.fatal():
                self._pending_error = error
                self._leave()  # the next call joins again
            elif error.code() in _FIXABLE:
                self._pending_error = error

    def _take_buffered(self, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._released and len(found) < limit:
            found.append(self._released.popleft())
        while self._buffered and len(found) < limit:
            found.append(self._delivery(self._buffered.popleft()))
        return found

    def _delivery(self, message: KafkaMessage) -> Delivery:
        number, offset = message.partition(), message.offset()
        if number is None or offset is None:
            raise Unavailable("Kafka: received a message without a partition or an offset")
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _Partition(next(self._assignments))
        partition.pending[offset] = False
        receipt = _Receipt(number, offset, partition.assignment)
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
        """Commit the acknowledged offsets and wait until the broker confirms them.

        Raises:
            Unavailable: The broker did not confirm them in time.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while wanted := self._uncommitted():
            self._commit_error, self._commits_left = None, 1
            try:
                consumer.commit(offsets=wanted, asynchronous=True)
            except KafkaException as error:
                raise unavailable("cannot commit", reason(error)) from error
            slice_seconds = _FIRST_COMMIT_SLICE_SECONDS
            while self._commits_left and self._consumer is consumer and time.monotonic() < deadline:
                self._poll(consumer, slice_seconds)  # a confirmation alone does not end a poll early
                slice_seconds = min(2 * slice_seconds, _LONGEST_COMMIT_SLICE_SECONDS)
            if self._consumer is not consumer:  # closed by a fatal error, which the next ``receive`` raises
                return
            error_told = self._commit_error
            if self._commits_left:
                raise unavailable("cannot commit", "no broker answered in time")
            if error_told is None:
                self._note_committed(wanted)
            elif error_told.code() in _NOT_A_MEMBER:
                self._leave()
            elif time.monotonic() >= deadline:
                raise unavailable("cannot commit", error_told.str())
            else:  # the group is rebalancing, or its coordinator is changing
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

    # ---- reachability -------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        self._refusal(error)
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            self._is_unreachable = True

    def _check_reachable(self) -> None:
        """Raise an error if nothing was received because no broker is reachable.

        Raises:
            Unavailable: No broker answers.
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
