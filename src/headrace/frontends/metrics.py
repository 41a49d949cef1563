"""Every metric, declared in one place, and read from the counters that the engine keeps anyway.

Nothing is counted here: a scrape reads plain numbers. So a metric costs a request nothing. The series of a
version go when it is unloaded; those of its model go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from headrace.batching.statistics import LATENCY_BUCKETS_SECONDS, VersionStatistics
from headrace.engine import Engine
from headrace.loaded import LoadedVersion
from headrace.outcomes import Outcomes, said
from headrace.status import OK

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric is called and means.

    Attributes:
        name: Its name, without the suffixes that Prometheus' text format adds.
        kind: What Prometheus makes of it.
        help: What it counts or measures, and its unit.
        labels: By what it is divided.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("model", "version")


REQUESTS = Metric("headrace_requests", "counter", "Requests answered.")
ROWS = Metric("headrace_rows", "counter", "Rows of the requests answered.")
FAILURES = Metric(
    "headrace_failures", "counter", "Requests that ended in an error of the model, or too late."
)
REFUSED = Metric(
    "headrace_refused", "counter", "Requests refused at once: queue full, or deadline out of reach."
)
CANCELLED = Metric("headrace_cancelled", "counter", "Requests whose caller left before they were computed.")
DEFAULT_ANSWERS = Metric(
    "headrace_default_answers",
    "counter",
    "Requests answered with the model's default: refused, or too late for the model itself.",
)
CACHE_REQUESTS = Metric(
    "headrace_cache_requests",
    "counter",
    "Requests to a version with a prediction cache: hit, joined (an equal one was being computed), or miss.",
    ("model", "version", "result"),
)
CACHE_BYTES = Metric(
    "headrace_cache_bytes", "gauge", "What a prediction cache holds, requests and answers together."
)
REQUEST_SECONDS = Metric(
    "headrace_request_seconds", "histogram", "Time from a request's arrival to its answer."
)
QUEUE_SECONDS = Metric(
    "headrace_queue_seconds", "counter", "Time that answered requests spent in the queue, summed."
)
COMPUTE_SECONDS = Metric(
    "headrace_compute_seconds", "counter", "Time spent in the model, summed over batches."
)
BATCHES = Metric(
    "headrace_batches",
    "counter",
    "Batches computed, by why they were released.",
    ("model", "version", "release"),
)
BATCH_ROWS = Metric("headrace_batch_rows", "histogram", "Rows computed per batch, padding included.")
QUEUED_ROWS = Metric("headrace_queued_rows", "gauge", "Rows waiting in the queue.")
OUTSTANDING = Metric(
    "headrace_outstanding_requests",
    "gauge",
    "Requests that hold the version: large ones that are being read, queued ones, and those being computed.",
)
VERSION_STATE = Metric(
    "headrace_version_state", "gauge", "1 for the state that a version is in.", ("model", "version", "state")
)
LOAD_ATTEMPTS = Metric("headrace_load_attempts", "gauge", "How often loading a version has been tried.")
DEFAULT_VERSION = Metric(
    "headrace_default_version", "gauge", "The version that answers unnamed requests.", ("model",)
)
AGE = Metric("headrace_model_age_seconds", "gauge", "Time since the version was published, by its manifest.")
MAX_AGE = Metric(
    "headrace_model_max_age_seconds", "gauge", "The staleness objective of the model's settings.", ("model",)
)
STALE = Metric(
    "headrace_model_stale",
    "gauge",
    "1 when the default version is older than the staleness objective: alert on it.",
    ("model",),
)
MODEL_REQUESTS = Metric(
    "headrace_model_requests",
    "counter",
    "Requests answered by all versions of a model together, those that are unloaded included.",
    ("model",),
)
MODEL_ROWS = Metric("headrace_model_rows", "counter", "Rows of the requests answered.", ("model",))
MODEL_FAILURES = Metric(
    "headrace_model_failures",
    "counter",
    "Requests to all versions that ended in an error, or too late.",
    ("model",),
)
MODEL_REFUSED = Metric("headrace_model_refused", "counter", "Requests refused at once.", ("model",))
MODEL_CANCELLED = Metric(
    "headrace_model_cancelled", "counter", "Requests whose caller left before they were computed.", ("model",)
)
MODEL_DEFAULT_ANSWERS = Metric(
    "headrace_model_default_answers", "counter", "Requests answered with the model's default.", ("model",)
)
MODEL_CACHE_REQUESTS = Metric(
    "headrace_model_cache_requests",
    "counter",
    "Requests to the versions of a model that have a prediction cache, by what came of them.",
    ("model", "result"),
)
MODEL_REQUEST_SECONDS = Metric(
    "headrace_model_request_seconds",
    "histogram",
    "Time from a request's arrival to its answer.",
    ("model",),
)
CALLS = Metric(
    "headrace_calls",
    "counter",
    "Calls, by how they ended: answered (200, OK), with an error, or left by their caller (499, CANCELLED).",
    ("protocol", "code"),
)
ERRORS = Metric(
    "headrace_errors",
    "counter",
    "Calls that ended without an answer, those that no model has seen (400, 404, 413, …) included.",
    ("protocol", "code"),
)
READY = Metric("headrace_ready", "gauge", "1 when the server says that it is ready.", ())

METRICS = (
    REQUESTS, ROWS, FAILURES, REFUSED, CANCELLED, DEFAULT_ANSWERS, CACHE_REQUESTS, CACHE_BYTES,
    REQUEST_SECONDS, QUEUE_SECONDS, COMPUTE_SECONDS, BATCHES, BATCH_ROWS, QUEUED_ROWS, OUTSTANDING,
    VERSION_STATE, LOAD_ATTEMPTS, DEFAULT_VERSION, AGE, MAX_AGE, STALE, MODEL_REQUESTS, MODEL_ROWS,
    MODEL_FAILURES, MODEL_REFUSED, MODEL_CANCELLED, MODEL_DEFAULT_ANSWERS, MODEL_CACHE_REQUESTS,
    MODEL_REQUEST_SECONDS, CALLS, ERRORS, READY,
)  # fmt: skip

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def exposition(engine: Engine, *, ready: bool, others: Iterable[Collector] = ()) -> bytes:
    """The metrics in Prometheus' text format.

    Args:
        engine: What they are read from.
        ready: Whether the server says that it is ready.
        others: What else has metrics.
    """
    # Imported at the first scrape: a server that nobody scrapes starts without it.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Snapshot(engine, ready))
    for one in others:
        registry.register(one)
    return generate_latest(registry)


class _Snapshot:
    """A Prometheus collector over the engine's counters."""

    def __init__(self, engine: Engine, ready: bool) -> None:
        self._engine = engine
        self._ready = ready

    def collect(self) -> Iterator[Family]:
        loaded = self._engine.manager.all_loaded()
        yield from _counters(loaded)
        yield from _caches(loaded)
        yield from _histograms(loaded)
        yield from _model_totals(self._engine.totals.of_models())
        yield from self._versions()
        yield from self._ages(loaded)
        if self._engine.config.triton_metrics:
            yield from _triton(loaded)

    def _versions(self) -> Iterator[Family]:
        manager = self._engine.manager
        state, attempts, default = family(VERSION_STATE), family(LOAD_ATTEMPTS), family(DEFAULT_VERSION)
        for model in manager.models():
            for status in manager.status(model):
                number = str(status.version)
                state.add_metric([model, number, status.state.value], 1)
                attempts.add_metric([model, number], status.attempts)
            if (version := manager.default_version(model)) is not None:
                default.add_metric([model], version)
        ready = family(READY)
        ready.add_metric([], int(self._ready))
        yield from (state, attempts, default, *_calls(self._engine.outcomes), ready)

    def _ages(self, versions: Iterable[LoadedVersion]) -> Iterator[Family]:
        age, objective, stale = family(AGE), family(MAX_AGE), family(STALE)
        now = datetime.now(UTC)
        for loaded in versions:
            if loaded.published is None:
                continue
            seconds, most = (now - loaded.published).total_seconds(), loaded.config.versions.max_age_seconds
            age.add_metric(_labels(loaded), seconds)
            if most and self._engine.manager.default_version(loaded.name) == loaded.version:
                objective.add_metric([loaded.name], most)
                stale.add_metric([loaded.name], int(seconds > most))
        yield from (age, objective, stale)


def family(metric: Metric) -> Any:  # prometheus_client's families share no typed add_metric
    """An empty family of a metric, in prometheus_client's own class for its kind."""
    from prometheus_client import core  # noqa: PLC0415 - as above

    kinds = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


def _calls(outcomes: Outcomes) -> Iterator[Family]:
    calls, errors = family(CALLS), family(ERRORS)
    for door, tally in outcomes.tallies.items():
        calls.add_metric([door.value, said(door, OK)], tally.answered)
        for code, count in tally.failed.items():
            calls.add_metric([door.value, code], count)
            errors.add_metric([door.value, code], count)
    yield from (calls, errors)


def _counters(versions: Iterable[LoadedVersion]) -> Iterator[Family]:
    values: tuple[tuple[Metric, Callable[[LoadedVersion], float]], ...] = (
        (REQUESTS, lambda loaded: loaded.statistics.requests),
        (ROWS, lambda loaded: loaded.statistics.rows),
        (FAILURES, lambda loaded: loaded.statistics.failures),
        (REFUSED, lambda loaded: loaded.statistics.refused),
        (CANCELLED, lambda loaded: loaded.statistics.cancelled),
        (DEFAULT_ANSWERS, lambda loaded: loaded.statistics.defaults),
        (QUEUE_SECONDS, lambda loaded: loaded.statistics.queue_seconds),
        (COMPUTE_SECONDS, lambda loaded: loaded.statistics.compute_seconds),
        (QUEUED_ROWS, lambda loaded: loaded.queued_rows),
        (OUTSTANDING, lambda loaded: loaded.outstanding),
    )
    for metric, value in values:
        made = family(metric)
        for loaded in versions:
            made.add_metric(_labels(loaded), value(loaded))
        yield made
    batches = family(BATCHES)
    for loaded in versions:
        for release, count in loaded.statistics.releases.items():
            batches.add_metric([*_labels(loaded), release.value], count)
    yield batches


def _model_totals(models: Mapping[str, VersionStatistics]) -> Iterator[Family]:
    values: tuple[tuple[Metric, Callable[[VersionStatistics], float]], ...] = (
        (MODEL_REQUESTS, lambda total: total.requests),
        (MODEL_ROWS, lambda total: total.rows),
        (MODEL_FAILURES, lambda total: total.failures),
        (MODEL_REFUSED, lambda total: total.refused),
        (MODEL_CANCELLED, lambda total: total.cancelled),
        (MODEL_DEFAULT_ANSWERS, lambda total: total.defaults),
    )
    for metric, value in values:
        made = family(metric)
        for model, total in models.items():
            made.add_metric([model], value(total))
        yield made
    cached = family(MODEL_CACHE_REQUESTS)
    for model, total in models.items():
        for result, count in _cache_results(total).items():
            cached.add_metric([model, result], count)
    yield cached
    latency = family(MODEL_REQUEST_SECONDS)
    for model, total in models.items():
        latency.add_metric([model], _latency_buckets(total), total.request_seconds)
    yield latency


def _cache_results(statistics: VersionStatistics) -> dict[str, int]:
    """What came of requests to a prediction cache; nothing where there is none."""
    found = {
        "hit": statistics.cache_hits,
        "joined": statistics.cache_joined,
        "miss": statistics.cache_misses,
    }
    return found if any(found.values()) else {}


def _caches(versions: Iterable[LoadedVersion]) -> Iterator[Family]:
    requests, held = family(CACHE_REQUESTS), family(CACHE_BYTES)
    for loaded in versions:
        if loaded.cache is None:
            continue
        held.add_metric(_labels(loaded), loaded.cache.held_bytes)
        for result, count in _cache_results(loaded.statistics).items():
            requests.add_metric([*_labels(loaded), result], count)
    yield from (requests, held)


def _histograms(versions: Iterable[LoadedVersion]) -> Iterator[Family]:
    latency, sizes = family(REQUEST_SECONDS), family(BATCH_ROWS)
    for loaded in versions:
        statistics = loaded.statistics
        latency.add_metric(_labels(loaded), _latency_buckets(statistics), statistics.request_seconds)
        total = sum(rows * int(counted[0]) for rows, counted in statistics.batch_rows.items())
        sizes.add_metric(_labels(loaded), _batch_buckets(statistics), total)
    yield from (latency, sizes)


def _latency_buckets(statistics: VersionStatistics) -> list[tuple[str, float]]:
    bounds = [*map(str, LATENCY_BUCKETS_SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(statistics.latency_counts), strict=True))


def _batch_buckets(statistics: VersionStatistics) -> list[tuple[str, float]]:
    sizes = {rows: int(counted[0]) for rows, counted in statistics.batch_rows.items()}
    buckets = [(str(bound), sum(n for rows, n in sizes.items() if rows <= bound)) for bound in _BATCH_BUCKETS]
    return [*buckets, ("+Inf", sum(sizes.values()))]


def _labels(loaded: LoadedVersion) -> list[str]:
    return [loaded.name, str(loaded.version)]


# --- the names that existing boards use; on request, beside our own ---


def _triton(versions: Iterable[LoadedVersion]) -> Iterator[Family]:
    values: dict[str, Callable[[VersionStatistics], float]] = {
        "nv_inference_request_success": lambda statistics: statistics.requests,
        "nv_inference_request_failure": lambda statistics: statistics.failures + statistics.refused,
        "nv_inference_count": lambda statistics: statistics.rows,
        "nv_inference_exec_count": lambda statistics: statistics.batches,
        "nv_inference_request_duration_us": lambda statistics: int(statistics.request_seconds * 1e6),
        "nv_inference_queue_duration_us": lambda statistics: int(statistics.queue_seconds * 1e6),
        "nv_inference_compute_infer_duration_us": lambda statistics: int(statistics.compute_seconds * 1e6),
    }
    for name, value in values.items():
        # Triton's counters have no _total, which a counter family would add.
        made = family(Metric(name, "gauge", "Triton's name for headrace's own counter."))
        for loaded in versions:
            made.add_metric(_labels(loaded), value(loaded.statistics))
        yield made
