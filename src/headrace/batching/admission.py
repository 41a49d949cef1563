"""Admission to the queue: the reasons for refusing a request, and a safety factor on predicted waits.

If requests are admitted up to their deadlines by a prediction that is right on average, half of them are
answered too late, and late answers cost as much as timely ones. The prediction also omits some delays. Under
overload, refusing requests takes time from computing, and a request also waits in sockets before and after.
The predicted wait is therefore multiplied by a factor. It grows with each request that waited too long, and
falls with each that did not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from headrace.base.errors import Overloaded, TooLarge
from headrace.batching.request import NO_DEADLINE, Request

if TYPE_CHECKING:
    from headrace.batching.batch_queue import Batch, BatchQueue

_MOST_PRICED = 256
"""Number of explanations of a lane that are priced one by one."""

_TIMELY_SHARE = 0.8
"""Share of the time to the deadline within which an answer is timely; the rest is left for the network."""

_TOO_LONG = 0.05
_IN_TIME = 0.001
"""The two steps balance when one request in fifty waits too long."""

_MOST = 8.0


class Caution:
    """Learns the safety factor on predicted waits.

    Attributes:
        factor: Multiplier of predicted waits, from 1 to 8.
    """

    __slots__ = ("factor",)

    def __init__(self) -> None:
        """Begin with a factor of 1."""
        self.factor = 1.0

    def learn(self, requests: Iterable[Request], started: float, now: float) -> None:
        """Learn from requests that were computed together, or dropped.

        A request that spent more time in the model than in the queue does not count as having waited too
        long. A client whose deadlines are too short for the model must not cause refusals for others.

        Args:
            requests: The requests; those without a deadline are ignored.
            started: End of their wait, on the monotonic clock.
            now: End of the requests, on the monotonic clock.
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


def explanations_ahead(
    lane: BatchQueue, lanes: Iterable[BatchQueue], running: Iterable[Batch], now: float
) -> tuple[int, float]:
    """Price the explanations before a new prediction, where there is only one instance.

    Args:
        lane: The lane of the prediction.
        lanes: All lanes.
        running: The batches that are running.
        now: Current time on the monotonic clock.

    Returns:
        The rows of the explanations, and the predicted time in seconds of those that are certain to run
        before the prediction: a running one, and those older than the predictions whose batch it may join.
        Of each lane only the first requests count, so that a long queue costs a prediction little.
    """
    explained, seconds = 0, 0.0
    for batch in running:
        if batch.lane.cost is not lane.cost:
            explained += batch.rows
            seconds += max(batch.timings.formed + batch.lane.cost.seconds(batch.rows) - now, 0.0)
    until = lane.waits_since if lane.queue else now
    for other in lanes:
        if other.cost is not lane.cost:
            first = list(islice(other.queue, _MOST_PRICED))
            explained += sum([request.rows for request in first])
            older = sum([request.rows for request in first if request.enqueued <= until])
            seconds += other.cost.wait_seconds(older, other.max_rows, 1)
    return explained, seconds


def too_late(wait: float, left: float) -> Overloaded | None:
    """Return the error for a request that would be answered too late; None if it would be in time.

    Args:
        wait: Predicted time to the answer in seconds.
        left: Time to the deadline in seconds.
    """
    if wait <= left:
        return None
    return Overloaded(
        f"the answer would take about {wait * 1000:.1f} ms, and the deadline leaves {left * 1000:.1f} ms",
        retry_after_seconds=wait - left,
    )


def queue_full(waiting: int, rows: int, limit: int, retry_after_seconds: float) -> Overloaded:
    """Return the error for a request that finds the queue full.

    Args:
        waiting: Number of queued rows.
        rows: Number of rows of the request.
        limit: The most rows that may be queued.
        retry_after_seconds: Predicted time in seconds until the rows ahead are computed.
    """
    return Overloaded(
        f"the queue is full: {waiting} rows wait, {rows} more would exceed max_queue_rows = {limit}",
        retry_after_seconds=retry_after_seconds,
    )


def never_fits(rows: int, limit: int) -> TooLarge:
    """Return the error for a request that can never fit into the queue.

    Args:
        rows: Number of rows of the request.
        limit: The most rows that may be queued.
    """
    return TooLarge(
        f"the request has {rows} rows, and at most max_queue_rows = {limit} may wait; "
        "send fewer rows at once, or raise it in the model's [batching] settings"
    )
