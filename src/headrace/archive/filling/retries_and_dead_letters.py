"""Messages that a filler's thread has received and not finished: when each is tried again, or a dead letter.

A held message waits for its embedder, or until it is due. The dead-letter rule decides when a key is tried
again, and when it becomes a dead letter.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from headrace.archive.filling.pooled_embedder import Call, Dependency, DependencyUnavailable
from headrace.archive.lookup.dead_letter_records import DeadLetter, now
from headrace.archive.lookup.miss_queue import Wanted
from headrace.net.content_failures import Failure
from headrace.storage.queues.queue import Delivery

_MOST_LATER = 4  # batches of contents that are held to be retried later
_MOST_ASIDE = 10_000
_MOST_ASIDE_BYTES = 2**24
_DELIVERY_BYTES = 500  # size of a delivery in Python's memory, without its key and body
_LONGEST_ASIDE_SECONDS = 60.0  # a queue may keep everything behind a message until it is acknowledged
_LOOK_SECONDS = 0.05


class Task(NamedTuple):
    """A message with its attempts.

    Attributes:
        delivery: The message.
        attempts: Number of failed attempts.
        due: Time of the next attempt, on the monotonic clock.
        awaits: Embedder or table that it waits for, if any; waiting counts as no attempt.
        call: Call whose answer it waits for.
        refused: Number of contents that the embedder refused together the last time; 0 if it did not.
        answers: Number of batches that the embedder had answered when it refused this content alone; -1 if it
            did not.
    """

    delivery: Delivery
    attempts: int = 0
    due: float = 0.0
    awaits: Dependency | None = None
    call: Call | None = None
    refused: int = 0
    answers: int = -1


class HeldMessages:
    """The held messages of one receiver, for one thread."""

    def __init__(self, ways: Iterable[Sequence[Dependency]], batch: int) -> None:
        """Start with no messages.

        Args:
            ways: For each way to fill a space, everything it needs, such as an embedder and a table.
            batch: Number of keys embedded together.
        """
        self._ways = tuple(ways)
        self._batch = batch
        self._later: list[Task] = []
        self._aside: dict[Dependency, deque[tuple[float, Task]]] = {}
        self._count = self._bytes = 0  # of the messages set aside
        self._sizes: dict[Dependency, int] = {}  # number of messages set aside to try together next
        self._calls: dict[Call, list[Task]] = {}
        self._rests_until = 0.0

    def add(self, tasks: Iterable[Task], now: float) -> None:
        """Hold unfinished tasks until they are due."""
        for task in tasks:
            if task.call is not None:
                self._calls.setdefault(task.call, []).append(task)
            elif task.awaits is not None:
                self._aside.setdefault(task.awaits, deque()).append((now, task))
                if task.refused:  # one content may be the cause: try fewer together
                    self._sizes[task.awaits] = max(1, task.refused // 2)
                self._count += 1
                self._bytes += _size_of(task)
            else:
                self._later.append(task)

    @property
    def calls(self) -> Sequence[Call]:
        """Calls whose answers are awaited."""
        return list(self._calls)

    def due(self, now: float) -> list[Task]:
        """Take the tasks that can be done now: those of one ended call, or those no longer waiting."""
        for call, tasks in self._calls.items():
            if call.ended.is_set():
                del self._calls[call]
                return tasks
        due = [task for task in self._later if task.due <= now]
        self._later = [task for task in self._later if task.due > now]
        for awaited, waiting in self._aside.items():
            if waiting and self._can_ask(awaited, now):
                size = self._sizes.get(awaited, self._batch)
                self._sizes[awaited] = min(self._batch, 2 * size)
                return due + self._taken(waiting, _retry_size(waiting, size))
        return due

    def excess(self, now: float) -> list[Task]:
        """Take all but a few batches of the tasks set aside for callable embedders; others may do them."""
        found: list[Task] = []
        for awaited, waiting in self._aside.items():
            more = len(waiting) - _MOST_LATER * self._batch
            if more > 0 and self._can_ask(awaited, now):
                waiting.rotate(more)
                found += self._taken(waiting, more)
        return found

    def overflow(self, now: float) -> list[Task]:
        """Take the oldest tasks set aside if they are many or old, while other messages can be filled."""
        if not self._can_fill(now):
            return []
        found: list[Task] = []
        is_full = self._count > _MOST_ASIDE or self._bytes > _MOST_ASIDE_BYTES
        for waiting in self._aside.values():
            old = sum(1 for since, _ in waiting if now - since >= _LONGEST_ASIDE_SECONDS)
            found += self._taken(waiting, max(old, (len(waiting) + 1) // 2 if is_full else 0))
        return found

    def wants_more(self, now: float) -> bool:
        """Return whether to receive messages: there is room, and some may be processed now."""
        if len(self._later) >= _MOST_LATER * self._batch:
            return False
        if now < self._rests_until:
            return False
        is_idle = not self._count and not self._calls
        return is_idle or self._can_fill(now)

    def rest(self, now: float, seconds: float) -> None:
        """Receive nothing for a while."""
        self._rests_until = now + seconds

    def wait_seconds(self, now: float, longest: float) -> float:
        """Return how long to wait until a task is due, in seconds."""
        if self._calls:
            return min(_LOOK_SECONDS, longest)
        firsts = [task.due for task in self._later]
        firsts += [max(awaited.due, now + _LOOK_SECONDS) for awaited, one in self._aside.items() if one]
        return min(longest, max(0.0, min(firsts, default=float("inf")) - now))

    def _can_fill(self, now: float) -> bool:
        """Return whether any message that may come can be filled."""
        return any(all(self._can_ask(one, now) for one in way) for way in self._ways)

    def _can_ask(self, awaited: Dependency, now: float) -> bool:
        """Return whether this thread may ask it; not while one of its own calls is unanswered."""
        return awaited.may_be_asked(now) and not any(call.pooled is awaited for call in self._calls)

    def _taken(self, waiting: deque[tuple[float, Task]], count: int) -> list[Task]:
        found = [waiting.popleft()[1] for _ in range(count)]
        self._count -= count
        self._bytes -= sum(map(_size_of, found))
        return [task._replace(awaits=None) for task in found]


def _retry_size(waiting: deque[tuple[float, Task]], size: int) -> int:
    """Return how many of the first tasks to try together; one that was refused alone is tried alone again."""
    alone = (place for place, (_, task) in enumerate(islice(waiting, size)) if task.answers >= 0)
    return max(1, next(alone, min(size, len(waiting))))


def _size_of(task: Task) -> int:
    key, body = task.delivery.message
    return _DELIVERY_BYTES + len(key) + len(body)


ATTEMPTS = 5
"""Number of attempts before a key whose content may become available becomes a dead letter."""

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0
_LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True)
class EncoderFailed(Failure):
    """The encoder failed, perhaps not because of the content: the key is retried when queued again."""


def is_last(failure: Failure, attempts: int) -> bool:
    """Return whether a failure turns a key into a dead letter.

    Args:
        failure: The failure.
        attempts: Number of failed attempts before it.
    """
    return failure.is_final or attempts + 1 >= ATTEMPTS


def is_poison(letter: DeadLetter, ttl_seconds: float) -> bool:
    """Return whether a key with a dead letter is not tried again when a lookup misses it.

    It is tried again when it is replayed or invalidated, or when a vector of that age would have expired.

    Args:
        letter: The key's dead letter.
        ttl_seconds: Time to live of the space's vectors in seconds; 0 for none.
    """
    return letter.is_final and (not ttl_seconds or letter.died >= now() - ttl_seconds)


def again(task: Task) -> Task:
    """Return a task whose content may become available, with the time of its next attempt."""
    attempts = task.attempts + 1
    seconds = min(LONGEST_WAIT_SECONDS, 2 * FIRST_WAIT_SECONDS * 2**attempts)
    return Task(task.delivery, attempts, time.monotonic() + seconds)


def aside(task: Task, unavailable: DependencyUnavailable) -> Task:
    """Return a task whose embedder is unavailable.

    An attempt counts only if the embedder refused this content alone, and answered others since it last did.
    """
    attempts, answers = task.attempts, task.answers
    if unavailable.refused == 1:
        attempts += 0 <= answers < unavailable.answers
        answers = unavailable.answers
    return Task(
        task.delivery,
        attempts,
        awaits=unavailable.awaited,
        call=unavailable.call,
        refused=unavailable.refused,
        answers=answers,
    )


def letter_of(wanted: Wanted, reason: str, attempts: int, *, is_final: bool) -> DeadLetter:
    """Return the dead letter of a key, with a reason of limited length."""
    return DeadLetter(
        space=wanted.space,
        version=wanted.version,
        key=wanted.key,
        reason=reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …",
        attempts=attempts,
        died=now(),
        is_final=is_final,
    )
