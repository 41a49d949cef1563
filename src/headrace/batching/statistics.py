"""What one loaded version has done: plain numbers, counted once per batch where that is possible."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from headrace.batching.plan import Release
from headrace.batching.request import Request, Timings

LATENCY_BUCKETS_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip


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
        request_seconds: Time from arrival to answer, over all answered requests.
        failure_seconds: Time from arrival to error, over all failed requests.
        last_request_unix_seconds: When the last batch was answered, by the wall clock; 0 for never.
        batch_rows: For each number of rows computed: how many batches, and their seconds.
        releases: How many batches were released for which reason.
        latency_counts: Answered requests by latency, one more entry than ``LATENCY_BUCKETS_SECONDS``.
    """

    __slots__ = (
        "batch_rows", "batches", "cache_hits", "cache_joined", "cache_misses", "cancelled",
        "compute_seconds", "defaults", "failure_seconds", "failures", "last_request_unix_seconds",
        "latency_counts", "queue_seconds", "refused", "releases", "request_seconds", "requests", "rows",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start at nothing."""
        self.requests = self.rows = self.batches = 0
        self.failures = self.refused = self.cancelled = self.defaults = 0
        self.cache_hits = self.cache_joined = self.cache_misses = 0
        self.queue_seconds = self.compute_seconds = 0.0
        self.request_seconds = self.failure_seconds = 0.0
        self.last_request_unix_seconds = 0.0
        self.batch_rows: dict[int, list[float]] = {}
        self.releases = dict.fromkeys(Release, 0)
        self.latency_counts = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)

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
        slowest = bisect_left(LATENCY_BUCKETS_SECONDS, now - min(arrivals))
        if slowest == bisect_left(LATENCY_BUCKETS_SECONDS, now - max(arrivals)):
            self.latency_counts[slowest] += answered  # most batches lie in one bucket
        else:
            for enqueued in arrivals:
                self.latency_counts[bisect_left(LATENCY_BUCKETS_SECONDS, now - enqueued)] += 1
        self.requests += answered
        self.rows += rows
        self.queue_seconds += answered * timings.started - arrived
        self.request_seconds += answered * now - arrived
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - shown to people, never compared

    def count_alone(self, request: Request, timings: Timings, release: Release) -> None:
        """Count a batch of one request that was answered, as the other two would."""
        started, finished, arrived = timings.started, timings.finished, request.enqueued
        self.count_batch(request.rows, finished - started, release)
        self.latency_counts[bisect_left(LATENCY_BUCKETS_SECONDS, finished - arrived)] += 1
        self.requests += 1
        self.rows += request.rows
        self.queue_seconds += started - arrived
        self.request_seconds += finished - arrived
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - as above

    def count_repeated(self, request: Request, now: float) -> None:
        """Count a request that was answered without being computed itself."""
        seconds = now - request.enqueued
        self.latency_counts[bisect_left(LATENCY_BUCKETS_SECONDS, seconds)] += 1
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
        self.request_seconds += other.request_seconds
        self.failure_seconds += other.failure_seconds
        self.last_request_unix_seconds = max(self.last_request_unix_seconds, other.last_request_unix_seconds)
        self.latency_counts = [
            mine + its for mine, its in zip(self.latency_counts, other.latency_counts, strict=True)
        ]

    def count_failed(self, request: Request, now: float) -> None:
        """Count a request that ended in an error after it was admitted."""
        self.failures += 1
        self.failure_seconds += now - request.enqueued
