"""Merge the messages of several partitions in a reproducible order.

The next message is the oldest of the partitions' first ones, by Kafka's timestamp, then by partition. It is
known only when each partition has a message. A silent partition would delay all others, so it is skipped
after a while. Such a pick depends on timing, so it is marked, to be recorded and repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        partition: Its partition.
        offset: Its offset in the partition.
        timestamp: Kafka's timestamp, in milliseconds since 1970.
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
        by_chance: Whether a silent partition was skipped, so that the pick depends on timing.
    """

    message: Message
    number: int
    by_chance: bool


class Merge:
    """Takes messages by partition, and returns them in one order."""

    def __init__(self, number: int = 0, known: Mapping[int, int] | None = None) -> None:
        """Begin without partitions.

        Args:
            number: The number of the next message in the order.
            known: Recorded picks to repeat: the partition of each message whose pick depended on timing, by
                number.
        """
        self.number = number
        self._known = dict(known or {})
        self._last_known = max(self._known, default=-1)
        self._queues: dict[int, deque[Message]] = {}
        self._bytes: dict[int, int] = {}
        self._since: dict[int, int] = {}

    @property
    def repeats(self) -> bool:
        """Whether recorded picks remain."""
        return self.number <= self._last_known

    def join(self, partitions: Iterable[int], since: int) -> None:
        """Add partitions.

        Args:
            partitions: The partitions.
            since: The number in the order from which they take part.
        """
        for partition in partitions:
            self._queues.setdefault(partition, deque())
            self._bytes.setdefault(partition, 0)
            self._since.setdefault(partition, since)

    def add(self, message: Message) -> None:
        """Queue a message of a partition that was added."""
        self._queues[message.partition].append(message)
        self._bytes[message.partition] += len(message.value)

    def waiting(self, partition: int) -> tuple[int, int]:
        """Return the number of queued messages of a partition, and their size in bytes."""
        return len(self._queues[partition]), self._bytes[partition]

    def pick(self, silent: Callable[[int], bool]) -> Picked | None:
        """Return the next message; None if it is not known yet.

        Args:
            silent: Returns whether a partition without messages has been silent for so long that it is
                skipped.
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
