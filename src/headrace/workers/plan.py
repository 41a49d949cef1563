"""When a worker is started again, when the whole server gives up, and when a worker is stuck: pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Until a worker that has ended is started again: the first time, and after many."""

MOST_FAILED_STARTS, COUNTED_SECONDS = 5, 60.0
"""So many starts within so long that brought no ready worker, and no worker is ready: the server gives up."""

_MOST_DOUBLINGS = 30


ALONE_SECONDS = 2.0
"""How long a worker goes on loading before it takes connections, where no other one answers."""


class End(NamedTuple):
    """How a worker ended.

    Attributes:
        worker: Which.
        at: When, on the monotonic clock.
        ready: Whether it had been ready: its models tried, and one of them answering.
    """

    worker: int
    at: float
    ready: bool


def pause_seconds(ends: Sequence[End], worker: int, now: float) -> float:
    """How long to wait before a worker is started again: longer, the more often it has ended lately.

    Args:
        ends: How workers have ended, this one last.
        worker: Which is to be started.
        now: The monotonic time in seconds.
    """
    often = sum(one.worker == worker and now - one.at < COUNTED_SECONDS for one in ends)
    return float(
        min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(max(0, often - 1), _MOST_DOUBLINGS))
    )


def gives_up(ends: Sequence[End], now: float, *, ready: int) -> bool:
    """Whether starting workers again is of no use.

    Args:
        ends: How workers have ended.
        now: The monotonic time in seconds.
        ready: How many workers are ready now: as long as one is, the server goes on trying.
    """
    failed = sum(not one.ready and now - one.at < COUNTED_SECONDS for one in ends)
    return failed >= MOST_FAILED_STARTS and not ready


def alone(starting: Sequence[bool], answering: Sequence[bool]) -> list[int]:
    """Say which workers are to take connections soon, although some of their models are still loading.

    Args:
        starting: By worker: whether it runs, and does not serve yet.
        answering: By worker: whether it serves, and is not stuck.

    Returns:
        All that are starting, if none answers: better one that refuses what it has not loaded than nobody.
    """
    return [] if any(answering) else [number for number, one in enumerate(starting) if one]


class Silence(Enum):
    """What to make of a worker that does not answer."""

    NONE = "none"
    SUSPECT = "suspect"
    OVER = "over"


def silence(missed: int, beat_seconds: float, timeout_seconds: float) -> Silence:
    """Say what to make of beats that a worker has not answered.

    Beats are counted, not seconds: when the whole machine has stood still, nobody is to blame.

    Args:
        missed: How many have gone unanswered in a row.
        beat_seconds: How often they are sent.
        timeout_seconds: How long a worker may be silent.

    Returns:
        ``SUSPECT`` from a third of that time on: it gets no new connections. ``OVER`` when it is to be ended.
    """
    seconds = missed * beat_seconds
    if seconds >= timeout_seconds:
        return Silence.OVER
    return Silence.SUSPECT if seconds >= timeout_seconds / 3 else Silence.NONE
