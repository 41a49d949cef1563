"""Decide when a worker is restarted, when the server gives up, and when a worker is stuck; pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Shortest and longest pause before a worker that has ended is restarted."""

MOST_FAILED_STARTS, COUNTED_SECONDS = 5, 60.0
"""The server gives up after this many failed starts within this time if no worker is ready."""

_MOST_DOUBLINGS = 30


ALONE_SECONDS = 2.0
"""Time for which a worker goes on loading before it accepts connections if no other worker answers."""


class End(NamedTuple):
    """End of a worker process.

    Attributes:
        worker: Number of the worker.
        at: Time on the monotonic clock.
        ready: Whether its models had been tried and one was ready.
    """

    worker: int
    at: float
    ready: bool


def pause_seconds(ends: Sequence[End], worker: int, now: float) -> float:
    """Return the pause in seconds before a worker is restarted; it grows with the number of recent ends.

    Args:
        ends: Ends of all workers; the latest is that of this worker.
        worker: Number of the worker to restart.
        now: Monotonic time in seconds.
    """
    often = sum(one.worker == worker and now - one.at < COUNTED_SECONDS for one in ends)
    return float(
        min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(max(0, often - 1), _MOST_DOUBLINGS))
    )


def gives_up(ends: Sequence[End], now: float, *, ready: int) -> bool:
    """Return whether the server gives up restarting workers.

    Args:
        ends: Ends of all workers.
        now: Monotonic time in seconds.
        ready: Number of ready workers; the server does not give up while there is one.
    """
    failed = sum(not one.ready and now - one.at < COUNTED_SECONDS for one in ends)
    return failed >= MOST_FAILED_STARTS and not ready


def alone(starting: Sequence[bool], answering: Sequence[bool]) -> list[int]:
    """Return the workers that must accept connections soon, although they are still loading models.

    Args:
        starting: By worker, whether it runs and does not serve yet.
        answering: By worker, whether it serves and answers beats.

    Returns:
        All starting workers if none answers: one that refuses requests for unloaded models is better than
        none.
    """
    return [] if any(answering) else [number for number, one in enumerate(starting) if one]


class Silence(Enum):
    """Judgement on a worker that does not answer beats."""

    NONE = "none"
    SUSPECT = "suspect"
    TIMED_OUT = "timed out"


def silence(missed: int, beat_seconds: float, timeout_seconds: float) -> Silence:
    """Judge a worker by its unanswered beats.

    Beats are counted rather than seconds, so that a suspended machine does not condemn its workers.

    Args:
        missed: Number of consecutive unanswered beats.
        beat_seconds: Interval of the beats.
        timeout_seconds: Longest time for which a worker may be silent.

    Returns:
        ``SUSPECT`` from a third of the timeout: the worker gets no new connections. ``TIMED_OUT`` from the
        timeout: the worker is to be killed.
    """
    seconds = missed * beat_seconds
    if seconds >= timeout_seconds:
        return Silence.TIMED_OUT
    return Silence.SUSPECT if seconds >= timeout_seconds / 3 else Silence.NONE
