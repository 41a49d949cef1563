"""What one loaded version has done: plain numbers, counted once per batch where that is possible."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.batching.latencies import Latencies
from headrace.batching.plan import Release
from headrace.batching.request import Request, Timings


class ObjectiveCounts(NamedTuple):
    """How the requests to models with a latency objective ended.

    Attributes:
        kept: Answered within the objective.
        late: Answered later than that.
        failed: Ended in an error of the model, or too late for their own deadline.
        refused: Refused at once.
    """

    kept: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0

    def plus(self, other: ObjectiveCounts) -> ObjectiveCounts:
        """Both together."""
        return ObjectiveCounts(*(mine + its for mine, its in zip(self, other, strict=True)))


class VersionStatistics:
    """Counts of one Batcher. Belongs to the thread that its Batcher belongs to; others may read.

    Attributes:
        requests: Requests answered.
        rows: Rows of those.
        batches: Calls of the Servable that answered.
        failures: Requests that ended in an error of the model, or too late.
        refused: Requests refused at once.
        cancelled: Requests whose caller left before they were computed.
        defaults: Requests that were answered with a default; they are refused or failed ones, too.
        cache_hits: Requests that were answered from the prediction cache.
        cache_joined: Requests that waited for the answer to an equal one.
        cache_misses: Requests that went to the model although it has a cache.
        queue_seconds: Time from a request's arrival to its batch's start, over all answered requests.
        compute_seconds: Time in the Servable.
        aside_seconds: The part of it that another thread spent than the one this belongs to.
        request_seconds: Time from arrival to answer, over all answered requests.
        failure_seconds: Time from arrival to error, over all failed requests.
        last_request_unix_seconds: When the last batch was answered, by the wall clock; 0 for never.
        batch_rows: For each number of rows computed: how many batches, and their seconds.
        releases: How many batches were released for which reason.
        latencies: Answered requests by latency, and how many of them kept the objective.
    """

    __slots__ = (
        "_has_objective", "_others_objective", "aside_seconds", "batch_rows", "batches",
        "cache_hits", "cache_joined", "cache_misses", "cancelled",
        "compute_seconds", "defaults", "failure_seconds", "failures", "last_request_unix_seconds",
        "latencies", "queue_seconds", "refused", "releases", "request_seconds", "requests", "rows",
    )  # fmt: skip

    def __init__(self, objective_seconds: float = 0.0) -> None:
        """Start at nothing.

        Args:
            objective_seconds: The latency objective of the model; 0 for none.
        """
        self.requests = self.rows = self.batches = 0
        self.failures = self.refused = self.cancelled = self.defaults = 0
        self.cache_hits = self.cache_joined = self.cache_misses = 0
        self.queue_seconds = self.compute_seconds = self.aside_seconds = 0.0
        self.request_seconds = self.failure_seconds = 0.0
        self.last_request_unix_seconds = 0.0
        self.batch_rows: dict[int, list[float]] = {}
        self.releases = dict.fromkeys(Release, 0)
        self.latencies = Latencies(objective_seconds)
        self._has_objective = objective_seconds > 0
        self._others_objective = ObjectiveCounts()

    def count_batch(self, rows: int, seconds: float, release: Release) -> None:
        """Count one call of the Servable.

        Args:
            rows: The rows it computed, padding included.
            seconds: How long it took.
            release: Why the batch was released.
        """
        self.batches += 1
        self.compute_seconds += seconds
        self.releases[release] += 1
        counted = self.batch_rows.get(rows)
        if counted is None:
            counted = self.batch_rows[rows] = [0, 0.0]
        counted[0] += 1
        counted[1] += seconds

    def count_answered(self, requests: Sequence[Request], timings: Timings, now: float) -> None:
        """Count the requests of a batch that were answered.

        Args:
            requests: Those that somebody still waited for.
            timings: Their batch's timings.
            now: When they were answered.
        """
        answered = len(requests)
        arrivals = [request.enqueued for request in requests]
        arrived = sum(arrivals)
        rows = timings.rows if answered == timings.requests else sum([request.rows for request in requests])
        self.latencies.add_arrivals(arrivals, now)
        self.requests += answered
        self.rows += rows
        self.queue_seconds += answered * timings.started - arrived
        self.request_seconds += answered * now - arrived
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - shown to people, never compared

    def count_alone(self, request: Request, timings: Timings, release: Release) -> None:
        """Count a batch of one request that was answered, as the other two would."""
        started, finished, arrived = timings.started, timings.finished, request.enqueued
        self.count_batch(request.rows, finished - started, release)
        latencies = self.latencies
        latencies.counts[bisect_left(latencies.bounds, finished - arrived)] += 1
        self.requests += 1
        self.rows += request.rows
        self.queue_seconds += started - arrived
        self.request_seconds += finished - arrived
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - as above

    def count_repeated(self, request: Request, now: float) -> None:
        """Count a request that was answered without being computed itself."""
        seconds = now - request.enqueued
        self.latencies.add(seconds)
        self.requests += 1
        self.rows += request.rows
        self.queue_seconds += seconds
        self.request_seconds += seconds
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - as above

    @property
    def cached_share(self) -> float | None:
        """The share of requests that a prediction cache spared the model; None without any."""
        spared = self.cache_hits + self.cache_joined
        asked = spared + self.cache_misses
        return spared / asked if asked else None

    @classmethod
    def together(cls, parts: Iterable[VersionStatistics]) -> VersionStatistics:
        """What several Batchers of one version have done; some of them may be counting at this moment."""
        total = cls()
        for part in parts:
            total.add(part)
            for release, count in part.releases.items():
                total.releases[release] += count
            for rows, (batches, seconds) in part.batch_rows.copy().items():
                counted = total.batch_rows.setdefault(rows, [0, 0.0])
                counted[0] += batches
                counted[1] += seconds
        return total

    def add(self, other: VersionStatistics) -> None:
        """Count what another version has done, too; not by batches' sizes, nor by why they were released."""
        self.requests += other.requests
        self.rows += other.rows
        self.batches += other.batches
        self.failures += other.failures
        self.refused += other.refused
        self.cancelled += other.cancelled
        self.defaults += other.defaults
        self.cache_hits += other.cache_hits
        self.cache_joined += other.cache_joined
        self.cache_misses += other.cache_misses
        self.queue_seconds += other.queue_seconds
        self.compute_seconds += other.compute_seconds
        self.aside_seconds += other.aside_seconds
        self.request_seconds += other.request_seconds
        self.failure_seconds += other.failure_seconds
        self.last_request_unix_seconds = max(self.last_request_unix_seconds, other.last_request_unix_seconds)
        self.latencies.add_all(other.latencies)
        if other.objective is not None:
            self._others_objective = self._others_objective.plus(other.objective)

    @property
    def objective(self) -> ObjectiveCounts | None:
        """How requests ended as the latency objective sees it; None where there never was one."""
        others = self._others_objective
        if not self._has_objective:
            return others if any(others) else None
        kept = self.latencies.within_objective
        own = ObjectiveCounts(kept, max(0, self.requests - kept), self.failures, self.refused)
        return own.plus(others)

    def count_failed(self, request: Request, now: float) -> None:
        """Count a request that ended in an error after it was admitted."""
        self.failures += 1
        self.failure_seconds += now - request.enqueued
