"""Queue: messages, delivered at least once. The contract of all engines, tested by the conformance suite.

A message that ``publish`` has accepted is delivered until it is acknowledged, even if processes are killed. A
received message is invisible to other receivers until it is acknowledged or released, or its receiver has
been silent for the visibility timeout. In the latter two cases it is delivered again.

Messages of one key are delivered in the order of publication, to one receiver at a time. Messages of
different keys come in roughly that order. A queue may drop a message if one with the same key and body is
waiting or being worked on; memory and LMDB always do.

Calls block. Those of a Queue are thread-safe. A Receiver is for one thread, but another thread may call its
``keep`` meanwhile. Each call returns, or raises ``Unavailable``, within the queue's timeout; ``receive`` also
waits for messages. The object remains usable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.base.errors import InvalidRequest, Overloaded, TooLarge

LONGEST_KEY_BYTES = 480
"""Longest key of a message in bytes."""

LARGEST_BODY_BYTES = 256 * 1024
"""Largest body of a message in bytes."""


class Message(NamedTuple):
    """A message to deliver.

    Attributes:
        key: Key, within which messages keep their order.
        body: Content.
    """

    key: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message.

    Attributes:
        message: The message as published.
        queued: Time of publication in seconds of Unix time.
        receipt: Identifier of the message within the queue.
    """

    message: Message
    queued: float
    receipt: object


class Depth(NamedTuple):
    """The backlog of a queue.

    Attributes:
        messages: Number of unacknowledged messages, including received ones.
        oldest_seconds: Age of the oldest unacknowledged message in seconds; 0 if there is none.
    """

    messages: int
    oldest_seconds: float


class Held(NamedTuple):
    """Messages that receivers have received and not acknowledged.

    Attributes:
        messages: Number of these messages.
        silent: Number of those held by receivers that have been silent for half their visibility timeout.
        silent_seconds: Shortest silence of such a receiver in seconds; 0 if there is none.
        until_seconds: Longest time in seconds until the messages of such a receiver can be delivered again;
            0 if they can be now.
    """

    messages: int
    silent: int
    silent_seconds: float
    until_seconds: float


@runtime_checkable
class TellsHeld(Protocol):
    """An optional interface of a Queue that reports the messages its receivers hold."""

    def held(self) -> Held:
        """Return the number of messages that receivers have received and not acknowledged.

        Raises:
            Unavailable: The queue did not answer in time.
        """


class Receiver(Protocol):
    """One consumer of a queue.

    It joins with its first ``receive``. Each of its calls signals that it is alive and still works on the
    messages that it has received.
    """

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """Receive messages and hide them from other receivers.

        Args:
            limit: Maximum number of messages, at least 1.
            wait_seconds: Longest wait for the first message. Does not wait for more once there is one.

        Returns:
            The oldest messages, those of each key in order; empty if none came.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def keep(self) -> None:
        """Signal that work on the received messages goes on. Call it every third of the visibility timeout.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """Acknowledge messages; once this returns, they are not delivered again, even after a crash.

        Messages that this receiver has lost, by silence or to another receiver, are skipped; they are
        delivered again.

        Returns:
            Number of messages that this receiver still held.

        Raises:
            Unavailable: Some may not be acknowledged; retry with all of them.
        """

    def release(self, deliveries: Collection[Delivery]) -> None:
        """Return messages to the queue for immediate redelivery; skip those this receiver has lost."""

    def close(self) -> None:
        """Release all unacknowledged messages and leave the queue; raises nothing.

        Messages that cannot be released now are delivered again after the visibility timeout.
        """


class Queue(Protocol):
    """A queue of messages."""

    def publish(self, messages: Sequence[Message]) -> None:
        """Enqueue messages; once this returns, they are kept even after a crash.

        Raises:
            Unavailable: Not all messages were accepted; some may be delivered.
            Overloaded: The queue is full; no message was accepted.
            TooLarge: A key or a body is too long; no message was accepted.
        """

    def receiver(self) -> Receiver:
        """Return a new receiver."""

    def remove(self, keys: Collection[bytes]) -> bool:
        """Drop the messages of these keys.

        A message that a receiver holds stays with it. If the receiver loses it, it is delivered again: the
        receiver may have died and left something for another one to clean up.

        Returns:
            Whether they were dropped; False if the engine cannot drop messages and its receivers must skip
            them.
        """

    def depth(self) -> Depth:
        """Return the backlog, at a cost independent of its size.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def close(self) -> None:
        """Close files, connections and receivers. The caller ensures that no call is in flight or follows."""


def check_messages(messages: Sequence[Message]) -> None:
    """Check that all queues take these messages.

    Raises:
        InvalidRequest: A key or a body is not bytes, or a key is empty.
        TooLarge: A key or a body is too long.
    """
    for number, message in enumerate(messages):
        key, body = message
        if type(key) is not bytes or type(body) is not bytes:
            got = f"{type(key).__name__} and {type(body).__name__}"
            raise InvalidRequest(f"expected bytes, got {got}", field=f"messages[{number}]")
        if not 0 < len(key) <= LONGEST_KEY_BYTES:
            wrong = InvalidRequest if not key else TooLarge
            expected = f"expected 1 to {LONGEST_KEY_BYTES} bytes, got {len(key)}"
            raise wrong(f"{expected}; use a digest for longer keys", field=f"messages[{number}].key")
        if len(body) > LARGEST_BODY_BYTES:
            expected = f"expected at most {LARGEST_BODY_BYTES} bytes, got {len(body)}"
            raise TooLarge(f"{expected}; queue a reference to the content", field=f"messages[{number}].body")


def check_receive(limit: int, wait_seconds: float) -> None:
    """Check the arguments of ``Receiver.receive``.

    Raises:
        InvalidRequest: The limit is below 1, or the wait is negative or not a number.
    """
    if limit < 1:
        raise InvalidRequest(f"expected at least 1, got {limit}", field="limit")
    if not wait_seconds >= 0:
        raise InvalidRequest(f"expected 0 seconds or more, got {wait_seconds}", field="wait_seconds")


def check_room(waiting: int, more: int, most: int) -> None:
    """Check that a queue has room for more messages.

    Args:
        waiting: Number of messages in the queue.
        more: Number of messages to add.
        most: Maximum number of messages.

    Raises:
        Overloaded: There is no room.
    """
    if waiting + more > most:
        raise Overloaded(
            f"the queue holds {waiting} of at most {most} messages: add fillers, or raise queue.max_messages"
        )


def numbers_of(deliveries: Iterable[Delivery]) -> list[int]:
    """Return the numbers of messages in a queue that numbers them, in ascending order."""
    return sorted({delivery.receipt for delivery in deliveries if isinstance(delivery.receipt, int)})
