"""One order for the messages of several partitions, which depends on what they are, and can be repeated.

The next message is the oldest of the partitions' first ones, by Kafka's timestamp, then by partition: so it
waits until each partition has one. A partition that is silent would keep all others waiting. After a while it
is passed over, which depends on chance: such picks are told, so that they can be written down and repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        partition: Where it lies.
        offset: Its number there.
        timestamp: When it was written, in milliseconds since 1970.
        value: Its bytes.
    """

    partition: int
    offset: int
    timestamp: int
    value: bytes


class Picked(NamedTuple):
    """The next message.

    Attributes:
        message: The message.
        number: Its number in the order, from 0.
        by_chance: Whether it would have been another one, had a silent partition spoken in time.
    """

    message: Message
    number: int
    by_chance: bool


class Merge:
    """Messages come in by partition, and go out in one order."""

    def __init__(self, number: int = 0, known: Mapping[int, int] | None = None) -> None:
        """Begin without partitions.

        Args:
            number: The number of the next message in the order.
            known: The partitions of messages that were picked by chance, by number, to be repeated.
        """
        self.number = number
        self._known = dict(known or {})
        self._last_known = max(self._known, default=-1)
        self._queues: dict[int, deque[Message]] = {}
        self._bytes: dict[int, int] = {}
        self._since: dict[int, int] = {}

    @property
    def repeats(self) -> bool:
        """Whether what is picked next is still said by what is known."""
        return self.number <= self._last_known

    def join(self, partitions: Iterable[int], since: int) -> None:
        """Let partitions take part.

        Args:
            partitions: Which.
            since: From which number in the order on.
        """
        for partition in partitions:
            self._queues.setdefault(partition, deque())
            self._bytes.setdefault(partition, 0)
            self._since.setdefault(partition, since)

    def add(self, message: Message) -> None:
        """Take in a message of a partition that takes part."""
        self._queues[message.partition].append(message)
        self._bytes[message.partition] += len(message.value)

    def waiting(self, partition: int) -> tuple[int, int]:
        """How many messages of a partition wait, and how many bytes they have."""
        return len(self._queues[partition]), self._bytes[partition]

    def pick(self, silent: Callable[[int], bool]) -> Picked | None:
        """Give the next message; None if it is not known yet which that is.

        Args:
            silent: Says whether a partition without messages has had none for so long that it is passed over.
        """
        if (partition := self._known.get(self.number)) in self._queues and partition is not None:
            return self._take(partition, by_chance=False) if self._queues[partition] else None
        taking_part = [one for one, since in self._since.items() if since <= self.number]
        ready = [one for one in taking_part if self._queues[one]]
        empty = [one for one in taking_part if not self._queues[one]]
        if not ready or (empty and (self.repeats or not all(map(silent, empty)))):
            return None
        oldest = min(ready, key=lambda one: (self._queues[one][0].timestamp, one))
        return self._take(oldest, by_chance=bool(empty))

    def _take(self, partition: int, *, by_chance: bool) -> Picked:
        message = self._queues[partition].popleft()
        self._bytes[partition] -= len(message.value)
        self._known.pop(self.number, None)
        self.number += 1
        return Picked(message, self.number - 1, by_chance)
