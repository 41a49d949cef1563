"""Queue: messages, delivered at least once. The contract that each engine keeps, and the suite tests.

A message that ``publish`` has accepted is delivered until somebody acknowledges it, whoever is killed
meanwhile. One that has been received is out of sight for everybody else until it is acknowledged, released,
or its receiver has been silent for the queue's visibility time: then it is delivered again.

Messages of one key are delivered in the order of their publication, and never are some of them with one
receiver while others are with another; those of different keys come about in that order. A queue may drop a
message when one with the same key and body waits or is being worked on (memory and LMDB always do).

Calls block, and a Queue's may be made from any number of threads at once; a Receiver is for one thread, but
another may call its ``keep`` meanwhile. Each call ends within the time that the queue was opened with, by
its result or by ``Unavailable``; after that the same object may be used again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.errors import InvalidRequest, TooLarge

LONGEST_KEY_BYTES = 480
"""The longest key of a message."""

LARGEST_BODY_BYTES = 256 * 1024
"""The largest body of a message."""


class Message(NamedTuple):
    """What is to be delivered.

    Attributes:
        key: What it concerns; messages of one key keep their order.
        body: The rest.
    """

    key: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it was received.

    Attributes:
        message: What was published.
        queued: When it was, in seconds of Unix time.
        receipt: What the queue knows it by.
    """

    message: Message
    queued: float
    receipt: object


class Depth(NamedTuple):
    """How much waits.

    Attributes:
        messages: How many are not acknowledged, received ones included.
        oldest_seconds: How long the oldest one of those has waited; 0 if there is none.
    """

    messages: int
    oldest_seconds: float


class Held(NamedTuple):
    """What receivers have received and not acknowledged.

    Attributes:
        messages: How many.
        silent: How many of those are with receivers that have said nothing for half their visibility time.
        silent_seconds: How long the one has been silent that was heard of last of those; 0 if there is none.
        until_seconds: After what time the last of them is delivered again; 0 for at once, to who asks.
    """

    messages: int
    silent: int
    silent_seconds: float
    until_seconds: float


@runtime_checkable
class TellsHeld(Protocol):
    """What a Queue may have beside: it says what its receivers hold."""

    def held(self) -> Held:
        """What receivers have received and not acknowledged.

        Raises:
            Unavailable: The queue did not answer in time.
        """


class Receiver(Protocol):
    """One consumer of a queue.

    It joins with its first ``receive``. Each of its calls says that it is alive, and that what it has
    received is still worked on.
    """

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """Take messages out of sight of others.

        Args:
            limit: The most, at least 1.
            wait_seconds: How long to wait for the first; more than are there by then are not waited for.

        Returns:
            The oldest ones, each key's in their order; none if none came.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def keep(self) -> None:
        """Say that what was received is still worked on; wanted in each third of the visibility time.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """Have messages delivered no more; when it returns they are not, whoever is killed.

        What this receiver has lost, by silence or to another, is left alone: it is or will be delivered
        again.

        Returns:
            How many were still this receiver's.

        Raises:
            Unavailable: Some may not be acknowledged; try again with all.
        """

    def release(self, deliveries: Collection[Delivery]) -> None:
        """Give messages back, to be delivered again at once; what this receiver has lost is left alone."""

    def close(self) -> None:
        """Give back all that was not acknowledged, and let go; raises nothing.

        What cannot be given back now is delivered again after the visibility time.
        """


class Queue(Protocol):
    """Where messages wait."""

    def publish(self, messages: Sequence[Message]) -> None:
        """Have messages delivered; when it returns they are kept, whoever is killed.

        Raises:
            Unavailable: Not all were accepted; some may be delivered.
            Overloaded: The queue holds as many as it may; none was accepted.
            TooLarge: A key or a body is too long; none was accepted.
        """

    def receiver(self) -> Receiver:
        """Join those who receive."""

    def remove(self, keys: Collection[bytes]) -> bool:
        """Drop the messages of these keys.

        One that somebody works on stays with him. If he loses it, it is delivered again: he may be gone, and
        have left something behind that another has to remove.

        Returns:
            Whether that was done; False where the engine cannot, and its readers must.
        """

    def depth(self) -> Depth:
        """How much waits; cheap, however much that is.

        Raises:
            Unavailable: The queue did not answer in time.
        """

    def close(self) -> None:
        """Let go of files and connections; closes its receivers; no call is under way or comes after."""


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what no queue takes.

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
            raise wrong(f"{expected}; use a digest of a longer key", field=f"messages[{number}].key")
        if len(body) > LARGEST_BODY_BYTES:
            expected = f"expected at most {LARGEST_BODY_BYTES} bytes, got {len(body)}"
            raise TooLarge(f"{expected}; queue a reference", field=f"messages[{number}].body")


def check_receive(limit: int, wait_seconds: float) -> None:
    """Refuse what nobody can mean.

    Raises:
        InvalidRequest: The limit is below 1, or the wait below 0 or no number.
    """
    if limit < 1:
        raise InvalidRequest(f"expected at least 1, got {limit}", field="limit")
    if not wait_seconds >= 0:
        raise InvalidRequest(f"expected 0 seconds or more, got {wait_seconds}", field="wait_seconds")
