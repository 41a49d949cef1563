"""The metrics of the engine and its models, read from the engine's own counters.

Nothing is counted here: a scrape reads plain numbers, so metrics cost requests nothing. The series of a
version end when it is unloaded; those of its model continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.status_codes import OK
from headrace.batching.statistics import VersionStatistics
from headrace.frontends.metrics.metric_types import Metric, add_latencies, family
from headrace.frontends.metrics.recent_load import Sampler
from headrace.lifecycle.manager import Manager
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion
from headrace.telemetry.outcomes import Outcomes, said

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector


REQUESTS = Metric("headrace_requests", "counter", "Requests answered.")
ROWS = Metric("headrace_rows", "counter", "Rows of the requests answered.")
FAILURES = Metric(
    "headrace_failures", "counter", "Requests that failed in the model or missed their deadline."
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
    "headrace_cache_bytes", "gauge", "Bytes held by a prediction cache, requests and answers together."
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
    "Batches computed, by the reason for their release.",
    ("model", "version", "release"),
)
BATCH_ROWS = Metric("headrace_batch_rows", "histogram", "Rows computed per batch, padding included.")
QUEUED_ROWS = Metric("headrace_queued_rows", "gauge", "Rows waiting in the queue.")
OUTSTANDING = Metric(
    "headrace_outstanding_requests",
    "gauge",
    "Requests in flight that keep the version loaded: being read, queued or being computed.",
)
VERSION_STATE = Metric(
    "headrace_version_state", "gauge", "1 for the current state of a version.", ("model", "version", "state")
)
LOAD_ATTEMPTS = Metric("headrace_load_attempts", "gauge", "Attempts to load a version.")
DEFAULT_VERSION = Metric(
    "headrace_default_version", "gauge", "The version that answers requests that name no version.", ("model",)
)
AGE = Metric(
    "headrace_model_age_seconds", "gauge", "Time since the version was published, according to its manifest."
)
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
    "Requests answered by all versions of a model, unloaded ones included.",
    ("model",),
)
MODEL_ROWS = Metric("headrace_model_rows", "counter", "Rows of the requests answered.", ("model",))
MODEL_FAILURES = Metric(
    "headrace_model_failures",
    "counter",
    "Requests to all versions that failed or missed their deadline.",
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
    "Requests to versions with a prediction cache, by result.",
    ("model", "result"),
)
MODEL_REQUEST_SECONDS = Metric(
    "headrace_model_request_seconds",
    "histogram",
    "Time from a request's arrival to its answer, in buckets of 9 %.",
    ("model",),
)
OBJECTIVE_REQUESTS = Metric(
    "headrace_objective_requests",
    "counter",
    "Requests to models with a latency objective, by result: kept (within it), late, failed or refused.",
    ("model", "result"),
)
OBJECTIVE_SECONDS = Metric(
    "headrace_objective_seconds", "gauge", "The latency objective of the model's settings.", ("model",)
)
OBJECTIVE_TARGET = Metric(
    "headrace_objective_target", "gauge", "The share of requests that should keep the objective.", ("model",)
)
ISOLATED_RESTARTS = Metric(
    "headrace_isolated_restarts",
    "counter",
    "Replaced processes of isolated versions, by reason.",
    ("model", "version", "reason"),
)
ISOLATED_READY = Metric(
    "headrace_isolated_ready", "gauge", "Processes of an isolated version that are ready: alert on 0."
)
ISOLATED_MEMORY = Metric(
    "headrace_isolated_memory_bytes",
    "gauge",
    "Memory that the processes of an isolated version do not share with others.",
)
OBJECTIVE_BUDGET = Metric(
    "headrace_objective_budget_remaining",
    "gauge",
    "The share of the error budget left in the objective's window; below 0 it is overdrawn.",
    ("model",),
)
OBJECTIVE_BURN = Metric(
    "headrace_objective_burn_rate",
    "gauge",
    "Burn rate of the error budget in the last twelfth of the window: 1 uses up the budget exactly.",
    ("model",),
)
LOAD = Metric(
    "headrace_load",
    "gauge",
    "Load as a fraction of the highest load at which the server meets its models' objectives.",
    (),
)
SERVING_THREAD = Metric(
    "headrace_serving_thread_busy",
    "gauge",
    "The share of time in which the serving thread works outside models or waits for a processor.",
    (),
)
MODEL_LOAD = Metric(
    "headrace_model_load",
    "gauge",
    "The fraction of the processors that requests for a model use.",
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
    "Calls that ended without an answer, including those that reached no model (400, 404, 413, …).",
    ("protocol", "code"),
)
READY = Metric("headrace_ready", "gauge", "1 when the server reports ready.", ())

METRICS = (
    REQUESTS, ROWS, FAILURES, REFUSED, CANCELLED, DEFAULT_ANSWERS, CACHE_REQUESTS, CACHE_BYTES,
    REQUEST_SECONDS, QUEUE_SECONDS, COMPUTE_SECONDS, BATCHES, BATCH_ROWS, QUEUED_ROWS, OUTSTANDING,
    VERSION_STATE, LOAD_ATTEMPTS, DEFAULT_VERSION, AGE, MAX_AGE, STALE, MODEL_REQUESTS, MODEL_ROWS,
    MODEL_FAILURES, MODEL_REFUSED, MODEL_CANCELLED, MODEL_DEFAULT_ANSWERS, MODEL_CACHE_REQUESTS,
    MODEL_REQUEST_SECONDS, OBJECTIVE_REQUESTS, OBJECTIVE_SECONDS, OBJECTIVE_TARGET, ISOLATED_RESTARTS,
    ISOLATED_READY, ISOLATED_MEMORY, OBJECTIVE_BUDGET, OBJECTIVE_BURN, LOAD, SERVING_THREAD, MODEL_LOAD,
    CALLS, ERRORS, READY,
)  # fmt: skip

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


Families = Iterator["Family | None"]
"""Families, with None where other work may run."""


def families(
    engine: Engine, *, ready: bool, others: Iterable[Collector] = (), sampler: Sampler | None = None
) -> Families:
    """Yield all metrics, each with its current values.

    Args:
        engine: The engine whose counters are read.
        ready: Whether the server reports that it is ready.
        others: Further collectors.
        sampler: Measures rates over the last seconds; None to leave those metrics out.
    """
    # Imported at the first scrape, which keeps it out of the start of servers that are never scraped.
    from prometheus_client import ProcessCollector  # noqa: PLC0415

    yield from ProcessCollector(registry=None).collect()
    yield from _of_engine(engine, ready)
    if sampler is not None:
        yield from _of_last_seconds(sampler)
    for one in others:
        yield None
        yield from one.collect()


class _Counted(NamedTuple):
    """A loaded version with its statistics.

    Attributes:
        loaded: The version.
        labels: The values of ``model`` and ``version``.
        statistics: Its statistics, summed once for all metrics.
    """

    loaded: LoadedVersion
    labels: list[str]
    statistics: VersionStatistics


def _of_engine(engine: Engine, ready: bool) -> Families:
    versions, totals = list[_Counted](), dict[str, VersionStatistics]()
    for loaded in engine.manager.all_loaded():
        versions.append(_Counted(loaded, [loaded.name, str(loaded.version)], loaded.statistics))
        yield None
    yield from _counters(versions)
    yield from _caches(versions)
    yield from _isolated(versions)
    yield from _histograms(versions)
    for model, total in engine.totals.of_models():
        totals[model] = total
        yield None
    yield from _model_totals(totals)
    yield from _versions(engine.manager)
    yield from _objectives(engine.manager)
    yield from _calls(engine.outcomes)
    is_ready = family(READY)
    is_ready.add_metric([], int(ready))
    yield is_ready
    yield from _ages(versions, engine.manager)
    if engine.config.triton_metrics:
        yield from _triton(versions)


def _versions(manager: Manager[LoadedVersion]) -> Families:
    state, attempts, default = family(VERSION_STATE), family(LOAD_ATTEMPTS), family(DEFAULT_VERSION)
    for model in manager.models():
        yield None
        if not manager.knows(model):
            continue
        for status in manager.status(model):
            number = str(status.version)
            state.add_metric([model, number, status.state.value], 1)
            attempts.add_metric([model, number], status.attempts)
        if (version := manager.default_version(model)) is not None:
            default.add_metric([model], version)
    yield from (state, attempts, default)


def _objectives(manager: Manager[LoadedVersion]) -> Families:
    """Yield the objectives of the default versions."""
    seconds, target = family(OBJECTIVE_SECONDS), family(OBJECTIVE_TARGET)
    for loaded in manager.all_loaded():
        yield None
        objective = loaded.config.objective
        if objective.latency_seconds and manager.default_version(loaded.name) == loaded.version:
            seconds.add_metric([loaded.name], objective.latency_seconds)
            target.add_metric([loaded.name], objective.target)
    yield from (seconds, target)


def _ages(versions: Iterable[_Counted], manager: Manager[LoadedVersion]) -> Families:
    age, objective, stale = family(AGE), family(MAX_AGE), family(STALE)
    now = datetime.now(UTC)
    for loaded, labels, _ in versions:
        yield None
        if loaded.published is None or not manager.knows(loaded.name):
            continue
        seconds, most = (now - loaded.published).total_seconds(), loaded.config.versions.max_age_seconds
        age.add_metric(labels, seconds)
        if most and manager.default_version(loaded.name) == loaded.version:
            objective.add_metric([loaded.name], most)
            stale.add_metric([loaded.name], int(seconds > most))
    yield from (age, objective, stale)


def _of_last_seconds(sampler: Sampler) -> Families:
    budget, burn = family(OBJECTIVE_BUDGET), family(OBJECTIVE_BURN)
    for model, one in sampler.budgets():
        yield None
        budget.add_metric([model], one.remaining)
        burn.add_metric([model], one.burn_rate)
    load, serving, of_models = family(LOAD), family(SERVING_THREAD), family(MODEL_LOAD)
    if sampler.load is not None:
        load.add_metric([], sampler.load)
        serving.add_metric([], sampler.serving_busy)
    for model, part in sampler.model_loads.items():
        yield None
        of_models.add_metric([model], part)
    yield from (budget, burn, load, serving, of_models)


def _calls(outcomes: Outcomes) -> Families:
    calls, errors = family(CALLS), family(ERRORS)
    for channel, tally in outcomes.tallies.items():
        calls.add_metric([channel.value, said(channel, OK)], tally.answered)
        for code, count in tally.failed.items():
            calls.add_metric([channel.value, code], count)
            errors.add_metric([channel.value, code], count)
    yield from (calls, errors)


def _counters(versions: Iterable[_Counted]) -> Families:
    values: tuple[tuple[Metric, Callable[[_Counted], float]], ...] = (
        (REQUESTS, lambda one: one.statistics.requests),
        (ROWS, lambda one: one.statistics.rows),
        (FAILURES, lambda one: one.statistics.failures),
        (REFUSED, lambda one: one.statistics.refused),
        (CANCELLED, lambda one: one.statistics.cancelled),
        (DEFAULT_ANSWERS, lambda one: one.statistics.defaults),
        (QUEUE_SECONDS, lambda one: one.statistics.queue_seconds),
        (COMPUTE_SECONDS, lambda one: one.statistics.compute_seconds),
        (QUEUED_ROWS, lambda one: one.loaded.queued_rows),
        (OUTSTANDING, lambda one: one.loaded.outstanding),
    )
    for metric, value in values:
        made = family(metric)
        for one in versions:
            made.add_metric(one.labels, value(one))
            yield None
        yield made
    batches = family(BATCHES)
    for _, labels, statistics in versions:
        yield None
        for release, count in statistics.releases.items():
            batches.add_metric([*labels, release.value], count)
    yield batches


def _model_totals(models: Mapping[str, VersionStatistics]) -> Families:
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
            yield None
        yield made
    cached = family(MODEL_CACHE_REQUESTS)
    for model, total in models.items():
        yield None
        for result, count in _cache_results(total).items():
            cached.add_metric([model, result], count)
    yield cached
    latency = family(MODEL_REQUEST_SECONDS)
    for model, total in models.items():
        add_latencies(latency, {"model": model}, total.latencies, total.request_seconds, fine=True)
        yield None
    yield latency
    kept = family(OBJECTIVE_REQUESTS)
    for model, total in models.items():
        yield None
        if total.objective is not None:
            for result, count in total.objective._asdict().items():
                kept.add_metric([model, result], count)
    yield kept


def _cache_results(statistics: VersionStatistics) -> dict[str, int]:
    """Return the results of requests to a prediction cache; empty without one or before its first request."""
    found = {
        "hit": statistics.cache_hits,
        "joined": statistics.cache_joined,
        "miss": statistics.cache_misses,
    }
    return found if any(found.values()) else {}


def _caches(versions: Iterable[_Counted]) -> Families:
    requests, held = family(CACHE_REQUESTS), family(CACHE_BYTES)
    for loaded, labels, statistics in versions:
        yield None
        if loaded.cache is None:
            continue
        held.add_metric(labels, loaded.cache.held_bytes)
        for result, count in _cache_results(statistics).items():
            requests.add_metric([*labels, result], count)
    yield from (requests, held)


def _isolated(versions: Iterable[_Counted]) -> Families:
    restarts, ready, memory = family(ISOLATED_RESTARTS), family(ISOLATED_READY), family(ISOLATED_MEMORY)
    for loaded, labels, _ in versions:
        yield None
        if loaded.isolated is None:
            continue
        ready.add_metric(labels, loaded.isolated.process_count)
        memory.add_metric(labels, loaded.isolated.memory_bytes)
        for reason, count in list(loaded.isolated.restarts.items()):
            restarts.add_metric([*labels, reason], count)
    yield from (restarts, ready, memory)


def _histograms(versions: Iterable[_Counted]) -> Families:
    latency, sizes = family(REQUEST_SECONDS), family(BATCH_ROWS)
    for _, labels, statistics in versions:
        named = dict(zip(REQUEST_SECONDS.labels, labels, strict=True))
        add_latencies(latency, named, statistics.latencies, statistics.request_seconds, fine=False)
        counts = {rows: int(counted[0]) for rows, counted in statistics.batch_rows.items()}
        sizes.add_metric(labels, _batch_buckets(counts), sum(rows * n for rows, n in counts.items()))
        yield None
    yield from (latency, sizes)


def _batch_buckets(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    """Return the cumulative number of batches for each bound, from the number of batches of each size."""
    buckets = [
        (str(bound), sum(n for rows, n in counts.items() if rows <= bound)) for bound in _BATCH_BUCKETS
    ]
    return [*buckets, ("+Inf", sum(counts.values()))]


# --- Triton's names, which existing dashboards use; on request, in addition to headrace's own ---


def _triton(versions: Iterable[_Counted]) -> Families:
    from headrace.frontends.metrics import triton_names  # noqa: PLC0415

    for name, counters in triton_names.by_name():
        labels = ("model", "version", "reason") if counters[0].reason else ("model", "version")
        # Triton's counters have no _total, which a counter family would add.
        made = family(Metric(name, "gauge", "Triton's name for headrace's own counter.", labels))
        for loaded, values, statistics in versions:
            yield None
            for one in counters:
                if loaded.cache is not None or not one.of_cache:
                    made.add_metric([*values, one.reason] if one.reason else values, one.value(statistics))
        yield made
