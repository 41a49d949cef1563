"""``headrace status``: show the state of a running server, with the causes of broken objectives."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace

from headrace.base.terminal import table
from headrace.cli import common
from headrace.cli.metrics_scrape import (
    Failure,
    Interval,
    MetricsClient,
    Scrape,
    add_server_options,
    metrics_client,
)

_EXAMPLES = """examples:
  headrace status http://127.0.0.1:8501
  headrace status https://models.internal:8501 --token-file token --json

It requests the metrics twice, --interval-seconds apart: rates and latencies cover the time in between.
* marks the default version, which answers requests that name no version. docs/objectives.md explains what
breaks an objective. The full reason why a version does not load is shown at the administration port, or with
a key that permits admin; elsewhere, the messages of models and files are left out.
"""

_MOSTLY = 0.5
_COLUMNS = (
    "model", "versions", "req/s", "err/s", "p50 ms", "p99 ms", "batch", "queue", "age", "load", "objective",
)  # fmt: skip
_LEFT = {0, 1, 10}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="status",
            help="show the state of a running server: models, rates, latencies, broken objectives",
            description="Ask a running server for its metrics, and show its models with their versions, "
            "rates and latencies, and which of them break their latency objectives, and why.",
            examples=_EXAMPLES,
            failure="the server does not answer",
            run=run,
        ),
    )
    add_server_options(parser)


def run(options: argparse.Namespace) -> int:
    """Scrape twice, and print the state."""
    seen = look(metrics_client(options), options.interval_seconds)
    if options.json:
        common.print_json(as_json(seen))
    else:
        print(as_text(seen))
    return common.DONE


def look(client: MetricsClient, seconds: float, before: Scrape | None = None) -> ServerStatus:
    """Scrape a server twice, and return its state.

    Args:
        client: The server.
        seconds: Time between the scrapes in seconds.
        before: The first scrape, if it was already made.

    Raises:
        ConfigError: The server refuses access, or is not a headrace server.
        Unavailable: The server does not answer.
    """
    before = before or client.scrape()
    time.sleep(seconds)
    seen = watched(client.name, Interval(before, client.scrape()))
    has_failed = any("failed" in model.versions.values() or not model.versions for model in seen.models)
    return replace(seen, failures=client.failures()) if has_failed else seen


@dataclass(frozen=True, slots=True)
class Objective:
    """State of a model's latency objective.

    Attributes:
        latency_seconds: The objective in seconds.
        target: The share of requests that should meet it.
        kept: The share of requests in the interval that met it; None without any.
        budget_remaining: Remaining error budget of the objective's window; None if not yet known.
        burn_rate: Burn rate of the budget; None if not yet known.
        broken_by: Main cause of the breach: ``queue``, ``compute``, ``transport``, ``errors``, ``refusals``
            or ``unknown``; "" if the objective is met.
    """

    latency_seconds: float
    target: float
    kept: float | None
    budget_remaining: float | None
    burn_rate: float | None
    broken_by: str


@dataclass(frozen=True, slots=True)
class Model:
    """State of one model.

    Attributes:
        name: The model's name.
        default: The default version; None without one.
        versions: The state of each version, by number.
        requests_per_second: Answered requests per second.
        errors_per_second: Failed and refused requests per second.
        p50_seconds: Median latency in seconds; None without requests.
        p99_seconds: 99th percentile of the latency in seconds; None without requests.
        batch_rows: Mean number of rows in a batch; None without batches.
        queued_rows: Number of queued rows.
        age_seconds: Age of the default version since its publication in seconds; None if unknown.
        is_stale: Whether the age exceeds the model's limit.
        load: Share of the processors that its requests need; None if not yet known.
        objective: State of its latency objective; None without one.
    """

    name: str
    default: int | None
    versions: dict[int, str]
    requests_per_second: float
    errors_per_second: float
    p50_seconds: float | None
    p99_seconds: float | None
    batch_rows: float | None
    queued_rows: int
    age_seconds: float | None
    is_stale: bool
    load: float | None
    objective: Objective | None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State of a server.

    Attributes:
        url: The server's address.
        is_ready: Whether the server reports that it is ready.
        load: See docs/autoscaling.md; None if not yet known.
        calls_per_second: Calls of all kinds per second.
        errors_per_second: Calls that ended with an error per second.
        models: The models, sorted by name.
        failures: The reasons why versions failed to load, or why models have no versions.
    """

    url: str
    is_ready: bool
    load: float | None
    calls_per_second: float
    errors_per_second: float
    models: tuple[Model, ...]
    failures: tuple[Failure, ...] = ()


def watched(url: str, interval: Interval) -> ServerStatus:
    """Derive a server's state from two scrapes."""
    after = interval.after
    names = {dict(key)["model"] for key in after.of("headrace_version_state")}
    return ServerStatus(
        url,
        is_ready=after.total("headrace_ready") > 0,
        load=after.one("headrace_load"),
        calls_per_second=interval.rate("headrace_calls_total"),
        errors_per_second=interval.rate("headrace_errors_total"),
        models=tuple(_model(name, interval) for name in sorted(names)),
    )


def _model(name: str, interval: Interval) -> Model:
    after = interval.after
    default = after.one("headrace_default_version", model=name)
    version = "" if default is None else str(int(default))
    states = {
        int(dict(key)["version"]): dict(key)["state"]
        for key, value in after.of("headrace_version_state", model=name).items()
        if value
    }
    batches = interval.growth("headrace_batch_rows_count", model=name)
    return Model(
        name,
        None if default is None else int(default),
        dict(sorted(states.items(), reverse=True)),
        requests_per_second=interval.rate("headrace_model_requests_total", model=name),
        errors_per_second=interval.rate("headrace_model_failures_total", model=name)
        + interval.rate("headrace_model_refused_total", model=name),
        p50_seconds=interval.quantile("headrace_model_request_seconds", 0.5, model=name),
        p99_seconds=interval.quantile("headrace_model_request_seconds", 0.99, model=name),
        batch_rows=interval.growth("headrace_batch_rows_sum", model=name) / batches if batches else None,
        queued_rows=int(after.total("headrace_queued_rows", model=name)),
        age_seconds=after.one("headrace_model_age_seconds", model=name, version=version),
        is_stale=after.total("headrace_model_stale", model=name) > 0,
        load=after.one("headrace_model_load", model=name),
        objective=_objective(name, interval),
    )


def _objective(name: str, interval: Interval) -> Objective | None:
    after = interval.after
    seconds = after.one("headrace_objective_seconds", model=name)
    target = after.one("headrace_objective_target", model=name)
    if seconds is None or target is None:
        return None
    ended = {
        result: interval.growth("headrace_objective_requests_total", model=name, result=result)
        for result in ("kept", "late", "failed", "refused")
    }
    total = sum(ended.values())
    kept = ended["kept"] / total if total else None
    budget = after.one("headrace_objective_budget_remaining", model=name)
    burn = after.one("headrace_objective_burn_rate", model=name)
    is_broken = (kept is not None and kept < target) or (budget is not None and budget < 0.0)
    queued = interval.growth("headrace_queue_seconds_total", model=name)
    spent = interval.growth("headrace_request_seconds_sum", model=name)
    busy = after.one("headrace_serving_thread_busy") or 0.0
    return Objective(
        seconds, target, kept, budget, burn, cause(ended, queued, spent, busy) if is_broken else ""
    )


def cause(ended: dict[str, float], queued: float, spent: float, serving_busy: float) -> str:
    """Return the main cause of a broken objective.

    Args:
        ended: Requests by result, as in ``headrace_objective_requests_total``.
        queued: Total time that answered requests spent in the queue, in seconds.
        spent: Total time from their arrival to their answer, in seconds.
        serving_busy: Share of time in which the serving thread is busy outside models, or waits for a
            processor.

    Returns:
        ``refusals`` or ``errors``; for late requests, where they spent most of their time: ``compute`` or
        ``queue``, or ``transport`` if they queued for a serving thread busy with bytes; ``unknown`` if no
        request broke the objective in the interval.
    """
    broken = {result: count for result, count in ended.items() if result != "kept" and count > 0}
    if not broken:
        return "unknown"
    worst = max(broken, key=broken.__getitem__)
    if worst == "refused":
        return "refusals"
    if worst == "failed":
        return "errors"
    if queued < _MOSTLY * spent:
        return "compute"
    return "transport" if serving_busy >= _MOSTLY else "queue"


def as_json(seen: ServerStatus) -> dict[str, object]:
    """Return the state as an object for JSON."""
    return {
        **{key: value for key, value in asdict(seen).items() if key not in ("models", "failures")},
        "models": [{**asdict(model), "versions": _versions_json(model)} for model in seen.models],
        "failures": [one._asdict() for one in seen.failures],
    }


def _versions_json(model: Model) -> list[dict[str, object]]:
    return [{"version": version, "state": state} for version, state in model.versions.items()]


def as_text(seen: ServerStatus) -> str:
    """Return the state as text: a line about the server, and a table of its models."""
    load = "–" if seen.load is None else f"{seen.load:.2f}"
    ready = "ready" if seen.is_ready else "NOT READY"
    calls = f"{seen.calls_per_second:,.1f} calls/s, {seen.errors_per_second:,.1f} errors/s"
    head = f"{seen.url}: {ready}, load {load}, {calls}"
    if not seen.models:
        return f"{head}\nno models"
    right = [column for column in range(len(_COLUMNS)) if column not in _LEFT]
    failures = [f"{' '.join(filter(None, one[:2]))} does not load: {one.reason}" for one in seen.failures]
    return "\n".join([head, table([_COLUMNS, *map(_row, seen.models)], right), *failures])


def _row(model: Model) -> tuple[str, ...]:
    return (
        model.name,
        _versions(model),
        f"{model.requests_per_second:,.1f}",
        f"{model.errors_per_second:,.1f}",
        _milliseconds(model.p50_seconds),
        _milliseconds(model.p99_seconds),
        "–" if model.batch_rows is None else f"{model.batch_rows:.1f}",
        f"{model.queued_rows:,}",
        "–"
        if model.age_seconds is None
        else _duration(model.age_seconds) + (" STALE" if model.is_stale else ""),
        "–" if model.load is None else f"{model.load:.2f}",
        "" if model.objective is None else _told(model.objective),
    )


def _versions(model: Model) -> str:
    """Format the versions: the default first, then the others that are not unloaded."""
    shown: list[str] = []
    for version, state in model.versions.items():
        if version == model.default:
            shown.insert(0, f"{version}*" if state == "ready" else f"{version}* {state}")
        elif state != "unloaded":
            shown.append(f"{version} {state}")
    return ", ".join(shown) or "none"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.0f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} d"


def _told(objective: Objective) -> str:
    limit = f"{objective.target:.4g} in {_milliseconds(objective.latency_seconds)} ms"
    if objective.broken_by:
        return f"BROKEN by {objective.broken_by} ({limit})"
    left = "" if objective.budget_remaining is None else f", budget {objective.budget_remaining:.0%}"
    return f"kept ({limit}{left})"
