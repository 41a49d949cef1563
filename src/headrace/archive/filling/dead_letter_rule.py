"""The dead-letter rule: when a key is tried again, and when it becomes a dead letter."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.archive.filling.embedder_outages import Away
from headrace.archive.filling.in_flight import Task
from headrace.archive.lookup.dead_letter_records import DeadLetter, now
from headrace.archive.lookup.miss_queue import Wanted
from headrace.net.content_failures import Failure

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


def aside(task: Task, away: Away) -> Task:
    """Return a task whose embedder is away.

    An attempt counts only if the embedder refused this content alone, and answered others since it last did.
    """
    attempts, answers = task.attempts, task.answers
    if away.refused == 1:
        attempts += 0 <= answers < away.answers
        answers = away.answers
    return Task(
        task.delivery,
        attempts,
        awaits=away.awaited,
        call=away.call,
        refused=away.refused,
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
