"""Statistics of loaded versions, their sums over processes, and the totals of each model."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, Self
from weakref import ref

import msgspec

from headrace.batching.latencies import Latencies
from headrace.batching.plan import Release
from headrace.batching.request import Request, Timings

# Statistics of one version as a message that can be summed over several processes.


class VersionCounts(msgspec.Struct, frozen=True):
    """Counts of one version, named as in ``VersionStatistics``.

    Attributes:
        model: The model's name.
        version: The version's number.
        batch_rows: Number of batches and their total seconds, by number of rows computed.
    """

    model: str
    version: int
    requests: int
    rows: int
    batches: int
    failures: int
    queue_seconds: float
    request_seconds: float
    failure_seconds: float
    last_request_unix_seconds: float
    batch_rows: dict[int, tuple[int, float]]

    @classmethod
    def of(cls, model: str, version: int, counted: VersionStatistics) -> Self:
        """Return the counts so far.

        Args:
            model: The model's name.
            version: The version's number.
            counted: The version's statistics.
        """
        return cls(
            model,
            version,
            counted.requests,
            counted.rows,
            counted.batches,
            counted.failures,
            counted.queue_seconds,
            counted.request_seconds,
            counted.failure_seconds,
            counted.last_request_unix_seconds,
            {rows: (int(count), seconds) for rows, (count, seconds) in counted.batch_rows.items()},
        )

    def plus(self, other: Self) -> VersionCounts:
        """Return the sum with another process's counts of the same version; the later last request wins."""
        batches = dict(self.batch_rows)
        for rows, (count, seconds) in other.batch_rows.items():
            counted, took = batches.get(rows, (0, 0.0))
            batches[rows] = counted + count, took + seconds
        return VersionCounts(
            self.model,
            self.version,
            self.requests + other.requests,
            self.rows + other.rows,
            self.batches + other.batches,
            self.failures + other.failures,
            self.queue_seconds + other.queue_seconds,
            self.request_seconds + other.request_seconds,
            self.failure_seconds + other.failure_seconds,
            max(self.last_request_unix_seconds, other.last_request_unix_seconds),
            batches,
        )


def added_up(counts: Iterable[VersionCounts]) -> list[VersionCounts]:
    """Sum the counts of several processes by version, and sort them by model name and version."""
    found: dict[tuple[str, int], VersionCounts] = {}
    for one in counts:
        known = found.get((one.model, one.version))
        found[one.model, one.version] = one if known is None else known.plus(one)
    return [found[key] for key in sorted(found)]


# Totals of each model over all its versions, including unloaded ones.


class Counted(Protocol):
    """A version with statistics.

    Attributes:
        name: The model's name.
    """

    name: str

    def all_statistics(self) -> tuple[VersionStatistics, ...]:
        """Return the statistics of its Batchers: the serving thread's, and the calling threads' if any."""


class ModelTotals:
    """Totals of each model since the server started, over all its versions, including unloaded ones.

    If totals fell when a version is unloaded, monitoring would take that for a restart of the server.
    """

    def __init__(self) -> None:
        """Begin without models."""
        self._gone: dict[str, VersionStatistics] = {}
        self._there: dict[str, list[tuple[ref[Counted], tuple[VersionStatistics, ...]]]] = {}

    def include(self, loaded: Counted) -> None:
        """Include a version from now on."""
        self._there.setdefault(loaded.name, []).append((ref(loaded), loaded.all_statistics()))
        self._fold(loaded.name)

    def of_models(self) -> Iterator[tuple[str, VersionStatistics]]:
        """Yield each model's name and its totals, added up on demand."""
        for name in list(self._there):
            self._fold(name)
            total = VersionStatistics()
            for statistics in chain([self._gone[name]], *(parts for _, parts in self._there[name])):
                total.add(statistics)
            yield name, total

    def _fold(self, name: str) -> None:
        """Fold the final statistics of a model's unloaded versions into one sum."""
        gone = self._gone.setdefault(name, VersionStatistics())
        there = []
        for version, parts in self._there[name]:
            if version() is None:
                for statistics in parts:
                    gone.add(statistics)
            else:
                there.append((version, parts))
        self._there[name] = there


class ObjectiveCounts(NamedTuple):
    """Requests to models with a latency objective, by how they ended.

    Attributes:
        kept: Requests answered within the objective.
        late: Requests answered later than the objective.
        failed: Requests that ended in an error of the model, or after their own deadline.
        refused: Requests refused at once.
    """

    kept: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0

    def plus(self, other: ObjectiveCounts) -> ObjectiveCounts:
        """Return the sum of both."""
        return ObjectiveCounts(*(mine + its for mine, its in zip(self, other, strict=True)))


class VersionStatistics:
    """Statistics of one Batcher. Only its serving thread writes them; other threads may read.

    Attributes:
        requests: Requests answered.
        rows: Rows of the answered requests.
        batches: Calls of the Servable that answered.
        failures: Requests that ended in an error of the model, or after their deadline.
        refused: Requests refused at once.
        cancelled: Requests whose caller left before they were answered.
        defaults: Requests answered with a default; they also count as refused or failed.
        cache_hits: Requests answered from the prediction cache.
        cache_joined: Requests that waited for the answer to an equal one.
        cache_misses: Requests to a model with a prediction cache that the model had to answer.
        queue_seconds: Time from arrival to the start of the batch, summed over all answered requests.
        compute_seconds: Time in the Servable.
        aside_seconds: The part of ``compute_seconds`` spent outside the serving thread.
        request_seconds: Time from arrival to answer, summed over all answered requests.
        failure_seconds: Time from arrival to error, summed over all failed requests.
        last_request_unix_seconds: Wall-clock time of the last answer; 0 for never.
        batch_rows: Number of batches and their total seconds, by number of rows computed.
        releases: Number of batches by reason of release.
        latencies: Latency histogram of the answered requests.
    """

    __slots__ = (
        "_has_objective", "_others_objective", "aside_seconds", "batch_rows", "batches",
        "cache_hits", "cache_joined", "cache_misses", "cancelled",
        "compute_seconds", "defaults", "failure_seconds", "failures", "last_request_unix_seconds",
        "latencies", "queue_seconds", "refused", "releases", "request_seconds", "requests", "rows",
    )  # fmt: skip

    def __init__(self, objective_seconds: float = 0.0) -> None:
        """Begin with all counts at 0.

        Args:
            objective_seconds: The model's latency objective in seconds; 0 for none.
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
            rows: Number of rows computed, including padding.
            seconds: Duration of the call.
            release: Reason for the batch's release.
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
        """Count the answered requests of a batch.

        Args:
            requests: The requests whose callers still waited.
            timings: The batch's timings.
            now: Time of the answer on the monotonic clock.
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
        """Count an answered batch of one request, as ``count_batch`` and ``count_answered`` would."""
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
        """Count a request answered from the prediction cache or with an equal request's answer."""
        seconds = now - request.enqueued
        self.latencies.add(seconds)
        self.requests += 1
        self.rows += request.rows
        self.queue_seconds += seconds
        self.request_seconds += seconds
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - as above

    def count_stream(self, rows: int, arrived: float, now: float) -> None:
        """Count a request whose answer in parts is complete; its latency is that of the whole stream.

        Args:
            rows: Number of rows of the request.
            arrived: Time of its arrival on the monotonic clock.
            now: Time at which it was complete.
        """
        seconds = now - arrived
        self.latencies.add(seconds)
        self.requests += 1
        self.rows += rows
        self.request_seconds += seconds
        self.last_request_unix_seconds = time.time()  # noqa: TID251 - as above

    def count_steps(self, rows: int, seconds: float) -> None:
        """Count the steps of an answer in parts as one batch, however it ended.

        Args:
            rows: Number of rows of the request.
            seconds: Duration of all steps together.
        """
        self.aside_seconds += seconds
        self.count_batch(rows, seconds, Release.IDLE)

    @property
    def cached_share(self) -> float | None:
        """Share of requests answered by the prediction cache; None without any request to a cache."""
        spared = self.cache_hits + self.cache_joined
        asked = spared + self.cache_misses
        return spared / asked if asked else None

    @classmethod
    def together(cls, parts: Iterable[VersionStatistics]) -> VersionStatistics:
        """Return the sum over several Batchers of one version, which may be counting in other threads."""
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
        """Add the statistics of another version, except ``batch_rows`` and ``releases``."""
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
        """Counts against the latency objective; None if there never was an objective."""
        others = self._others_objective
        if not self._has_objective:
            return others if any(others) else None
        kept = self.latencies.within_objective
        own = ObjectiveCounts(kept, max(0, self.requests - kept), self.failures, self.refused)
        return own.plus(others)

    def count_failed(self, request: Request, now: float) -> None:
        """Count a request that was admitted and then failed."""
        self.failures += 1
        self.failure_seconds += now - request.enqueued
