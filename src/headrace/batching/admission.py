"""Whom the queue takes: why a request is refused, and how far what is predicted is believed.

A queue that is filled up to the deadline by a prediction that is right on average answers half of its
requests too late, and what is late has cost as much as what is in time. And what is predicted is not all:
under overload the thread that refuses takes its time from the one that computes, and a request has waited
in a socket before, and will after. So what is ahead of a request counts for more than it is predicted to
cost, by a factor that grows with each request that waited too long, and falls with each that did not.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.batching.request import NO_DEADLINE, Request
from headrace.errors import Overloaded, TooLarge

_TIMELY_SHARE = 0.8
"""Of the time that a deadline leaves; the rest is for the way to the server and back."""

_TOO_LONG = 0.05
_IN_TIME = 0.001
"""One request of fifty may wait too long."""

_MOST = 8.0


class Caution:
    """The factor by which waits are taken for longer than they are predicted to be.

    Attributes:
        factor: From 1 to 8.
    """

    __slots__ = ("factor",)

    def __init__(self) -> None:
        """Begin by believing what is predicted."""
        self.factor = 1.0

    def learn(self, requests: Iterable[Request], started: float, now: float) -> None:
        """Learn from requests that were computed together, or dropped.

        Those whose time was spent in being computed rather than in waiting say nothing about waits: a client
        whose deadlines are too short for the model does not make the server refuse others.

        Args:
            requests: Those without a deadline are left out.
            started: When they had waited, on the monotonic clock.
            now: When they ended.
        """
        factor = self.factor
        for request in requests:
            if request.deadline == NO_DEADLINE:
                continue
            begun = request.enqueued
            spent = now - begun
            too_long = spent > _TIMELY_SHARE * (request.deadline - begun) and started - begun > spent / 2
            factor += _TOO_LONG if too_long else -_IN_TIME
        self.factor = min(max(factor, 1.0), _MOST)


def too_late(wait: float, left: float) -> Overloaded | None:
    """Why a request is refused that would be answered too late; None where it would not.

    Args:
        wait: How long it would take, in seconds.
        left: How long it may.
    """
    if wait <= left:
        return None
    return Overloaded(
        f"the answer would take about {wait * 1000:.1f} ms, and the deadline leaves {left * 1000:.1f} ms",
        retry_after_seconds=wait - left,
    )


def queue_full(waiting: int, rows: int, limit: int, retry_after_seconds: float) -> Overloaded:
    """Why a request is refused that finds the queue full.

    Args:
        waiting: The rows that wait.
        rows: Its own.
        limit: How many may wait.
        retry_after_seconds: When those will have been computed.
    """
    return Overloaded(
        f"the queue is full: {waiting} rows wait, {rows} more would pass max_queue_rows = {limit}",
        retry_after_seconds=retry_after_seconds,
    )


def never_fits(rows: int, limit: int) -> TooLarge:
    """Why a request is refused for good.

    Args:
        rows: Its own.
        limit: How many may wait.
    """
    return TooLarge(
        f"the request has {rows} rows, and at most max_queue_rows = {limit} may wait; "
        "send fewer rows at once, or raise it in the model's [batching] settings"
    )
