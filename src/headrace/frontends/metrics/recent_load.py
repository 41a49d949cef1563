"""Measurements over the last seconds: the load of a server, and what remains of its error budgets.

Counters are read once a second in the serving thread, from the first scrape until a few minutes after the
last one, or always if answers report the load. So requests pay nothing, and neither does a server without
scrapes.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import ref

from headrace.base import cpus
from headrace.batching.capacity import (
    LoadReport,
    ModelDemand,
    ServerDemand,
    batch_in_time,
    fit_of,
    server_load,
)
from headrace.batching.policy_defaults import inline_seconds, threads_per_instance
from headrace.batching.statistics import ObjectiveCounts
from headrace.config.headrace_toml import ObjectivePolicy
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion

_TICK_SECONDS = 1.0
_MEMORY_SECONDS = 3.0
"""Time constant of the rates in seconds: a doubled load shows after two or three seconds."""

_WATCHED_SECONDS = 300.0
"""Time after the last scrape during which counters are read, in seconds."""

_SLOTS, _BURN_SLOTS = 60, 5
"""Number of slots of an objective's window, and of the last slots from which the burn rate is computed."""

_QUIET_ROWS_PER_SECOND = 1e-3

_SLICE_SECONDS, _PAUSE_SECONDS = 5e-4, 2e-3
"""Length of a slice of reading, and of the pause for requests after it: 1,000 models take about 30 ms."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The state of an objective over its window.

    Attributes:
        remaining: Share of the error budget that is left; below 0 it is overdrawn.
        burn_rate: Rate at which it is used up in the last twelfth of the window; 1 is the rate allowed.
    """

    remaining: float
    burn_rate: float


class Sampler:
    """Reads the counters of an engine once a second. Serving thread only.

    Attributes:
        load: The load of the server, see ``headrace.batching.capacity``; None until it is known.
        serving_busy: Share of its time that the serving thread works on anything but models.
        model_loads: Share of the processors that the requests to each model need.
    """

    def __init__(self, engine: Engine) -> None:
        """Prepare; reading begins with ``watch`` or ``report_to``."""
        self.load: float | None = None
        self.serving_busy = 0.0
        self.model_loads: dict[str, float] = {}
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None
        self._watched = 0.0
        self._on_report: Callable[[LoadReport], object] | None = None
        self._flows: dict[ref[LoadedVersion], _Flow] = {}
        self._objectives: dict[str, ObjectiveHistory] = {}
        self._meter = _Meter()

    def watch(self) -> None:
        """Note that metrics are being read: start reading counters, or continue for a few minutes."""
        self._watched = time.monotonic()
        if self._timer is None:
            self._flows.clear()
            self._meter = _Meter()
            self._go_on(self._sample())

    def report_to(self, on_report: Callable[[LoadReport], object]) -> None:
        """Read the counters from now on, with or without scrapes.

        Args:
            on_report: Called with a report each time the load is computed.
        """
        self._on_report = on_report
        self.watch()

    def budgets(self) -> Iterator[tuple[str, Budget]]:
        """Yield the models with an objective and the state of each."""
        for model, history in list(self._objectives.items()):
            yield model, history.budget()

    def _tick(self) -> None:
        if self._on_report is not None or time.monotonic() - self._watched <= _WATCHED_SECONDS:
            self._go_on(self._sample())
        else:
            self.load, self.model_loads, self._timer = None, {}, None

    def _go_on(self, sampling: Iterator[None]) -> None:
        """Read for one slice of time, and schedule the next."""
        loop, until = asyncio.get_running_loop(), time.monotonic() + _SLICE_SECONDS
        for _ in sampling:
            if time.monotonic() >= until:
                self._timer = loop.call_later(_PAUSE_SECONDS, self._go_on, sampling)
                return
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)

    def _sample(self) -> Iterator[None]:
        """Read all counters, one model at a time."""
        computed = inline = requests = errors = 0.0
        demands, loads = list[ModelDemand](), dict[str, float]()
        processors = cpus.available()
        is_first = self._timer is None
        versions = self._engine.manager.all_loaded()
        gone = self._gone(versions)
        self._run_out(versions)
        for loaded in versions:
            yield
            now = time.monotonic()
            flow = self._flows.get(key := ref(loaded))
            if flow is None:
                flow = self._flows[key] = _Flow(loaded, now)
            seconds, of_serving_thread = flow.read(loaded, now)
            for before in gone.pop(loaded.name, ()):
                flow.go_on_from(before)
            computed, inline = computed + seconds, inline + of_serving_thread
            requests, errors = requests + flow.requests_per_second, errors + flow.errors_per_second
            self._count_objective(loaded, flow, now)
            demand = flow.demand(loaded)
            loads.setdefault(loaded.name, 0.0)
            if demand is not None:
                demands.append(demand)
                loads[loaded.name] += demand.busy * demand.threads / processors
        self._meter.read(computed, inline)
        if not is_first:
            self.model_loads = loads
            beside = self._meter.demand(float(processors))
            self.load, self.serving_busy = server_load(demands, beside), beside.serving
            if self._on_report is not None:
                self._on_report(LoadReport(self.load, requests, errors))

    def _gone(self, versions: Sequence[LoadedVersion]) -> dict[str, list[_Flow]]:
        """Remove the flows of versions that no longer exist, and return them by model."""
        there, gone = {ref(loaded) for loaded in versions}, dict[str, list[_Flow]]()
        for key in self._flows.keys() - there:
            flow = self._flows.pop(key)
            gone.setdefault(flow.model, []).append(flow)
        return gone

    def _run_out(self, versions: Sequence[LoadedVersion]) -> None:
        """Advance the objectives of models without a version, and drop those of unknown models."""
        manager, served = self._engine.manager, {loaded.name for loaded in versions}
        for model in self._objectives.keys() - served:
            if manager.knows(model):
                self._objectives[model].count(ObjectiveCounts(), time.monotonic())
            else:
                del self._objectives[model]

    def _count_objective(self, loaded: LoadedVersion, flow: _Flow, now: float) -> None:
        """Count ended requests; a model's objective is that of its default version."""
        model, policy, ended = loaded.name, loaded.config.objective, flow.objective_delta(loaded)
        manager, history = self._engine.manager, self._objectives.get(model)
        if manager.knows(model) and manager.default_version(model) == loaded.version:
            if not policy.latency_seconds:
                self._objectives.pop(model, None)
                return
            if history is None or history.policy != policy:
                history = self._objectives[model] = ObjectiveHistory(policy, now)
        if history is not None and history.policy == policy:
            history.count(ended, now)


class _Flow:
    """The rates of one version, computed from its counters.

    Attributes:
        model: Name of its model.
    """

    __slots__ = (
        "_before",
        "_objective",
        "_queued",
        "_read_at",
        "batch_rows",
        "errors_per_second",
        "model",
        "request_rows",
        "requests_per_second",
        "rows_per_second",
        "threads",
    )

    def __init__(self, loaded: LoadedVersion, now: float) -> None:
        self.model = loaded.name
        self._read_at = now
        self._before = _counters(loaded)
        self._queued = loaded.queued_rows
        self._objective = _objective(loaded)
        self.rows_per_second = self.requests_per_second = self.errors_per_second = 0.0
        self.request_rows = self.batch_rows = 1.0
        self.threads = threads_per_instance(loaded.config.batching)

    def read(self, loaded: LoadedVersion, now: float) -> tuple[float, float]:
        """Read the counters.

        Returns:
            The processor seconds that the model used since the last reading, and the seconds that the serving
            thread spent in the model.
        """
        after, queued = _counters(loaded), loaded.queued_rows
        elapsed, self._read_at = now - self._read_at, now
        if after == self._before and queued == self._queued and not self.rows_per_second:
            return 0.0, 0.0
        requests, rows, errors, cancelled, batches, seconds, aside = (
            new - old for new, old in zip(after, self._before, strict=True)
        )
        unanswered = errors + cancelled
        grown = queued - self._queued
        self._before, self._queued = after, queued
        weight = 1.0 - math.exp(-elapsed / _MEMORY_SECONDS)
        if requests > 0:
            self.request_rows += weight * (rows / requests - self.request_rows)
        if batches > 0:
            self.batch_rows += weight * (rows / batches - self.batch_rows)
        arrived = max(0.0, rows + unanswered * self.request_rows + grown)
        self.rows_per_second += weight * (arrived / elapsed - self.rows_per_second)
        self.requests_per_second += weight * ((requests + unanswered) / elapsed - self.requests_per_second)
        self.errors_per_second += weight * (errors / elapsed - self.errors_per_second)
        if self.rows_per_second < _QUIET_ROWS_PER_SECOND:
            self.rows_per_second = self.requests_per_second = self.errors_per_second = 0.0
        return seconds * self.threads, max(0.0, seconds - aside)

    def go_on_from(self, before: _Flow) -> None:
        """Add the rates of a version that no longer exists, whose requests now come to this one."""
        self.rows_per_second += before.rows_per_second
        self.requests_per_second += before.requests_per_second
        self.errors_per_second += before.errors_per_second

    def demand(self, loaded: LoadedVersion) -> ModelDemand | None:
        """Return the demand on the version; None while there is none, or its cost is unknown."""
        batcher, policy = loaded.batcher, loaded.config.batching
        if not self.rows_per_second or not batcher.cost.known:
            return None
        objective = loaded.config.objective.latency_seconds or 2 * policy.max_batch_seconds
        rows, seconds = batch_in_time(
            fit_of(batcher.cost), loaded.warmed, self.batch_rows, policy.max_batch_rows, objective
        )
        return ModelDemand(
            self.rows_per_second,
            rows,
            seconds,
            instances=batcher.instances.in_use,
            threads=self.threads,
            is_inline=seconds < inline_seconds(policy, loaded.servable),
        )

    def objective_delta(self, loaded: LoadedVersion) -> ObjectiveCounts:
        """Return how requests ended since the last reading."""
        after = _objective(loaded)
        delta = ObjectiveCounts(*(new - old for new, old in zip(after, self._objective, strict=True)))
        self._objective = after
        return delta


def _counters(loaded: LoadedVersion) -> tuple[float, ...]:
    """Return the sums of the versions' counters.

    These are requests, rows, errors, cancellations, batches, compute seconds, and those of them spent outside
    the serving thread.
    """
    requests = rows = errors = cancelled = batches = 0
    seconds = aside = 0.0
    for part in loaded.all_statistics():
        requests += part.requests
        rows += part.rows
        errors += part.failures + part.refused
        cancelled += part.cancelled
        batches += part.batches
        seconds += part.compute_seconds
        aside += part.aside_seconds
    return requests, rows, errors, cancelled, batches, seconds, aside


def _objective(loaded: LoadedVersion) -> ObjectiveCounts:
    counts = ObjectiveCounts()
    for part in loaded.all_statistics():
        counts = counts.plus(part.objective or ObjectiveCounts())
    return counts


class ObjectiveHistory:
    """Counts of how the requests of the last window ended.

    Attributes:
        policy: The objective.
    """

    def __init__(self, policy: ObjectivePolicy, now: float) -> None:
        """Start with an empty window."""
        self.policy = policy
        self._slots: deque[list[int]] = deque([[0, 0]], maxlen=_SLOTS)
        self._slot_ends = now + policy.window_seconds / _SLOTS

    def count(self, ended: ObjectiveCounts, now: float) -> None:
        """Add requests that have ended."""
        slot_seconds = self.policy.window_seconds / _SLOTS
        if now >= self._slot_ends:
            passed = int((now - self._slot_ends) / slot_seconds) + 1
            self._slots.extend([0, 0] for _ in range(min(passed, _SLOTS)))
            self._slot_ends += passed * slot_seconds
        slot = self._slots[-1]
        slot[0] += ended.kept
        slot[1] += sum(ended) - ended.kept

    def budget(self) -> Budget:
        """Return the rest of the error budget and its burn rate."""
        slots = list(self._slots)
        return Budget(1.0 - self._used(slots), self._used(slots[-_BURN_SLOTS:]))

    def _used(self, slots: list[list[int]]) -> float:
        """Return the share of requests that broke the objective, relative to the share allowed."""
        kept, broken = (sum(column) for column in zip(*slots, strict=True))
        return broken / (kept + broken) / (1.0 - self.policy.target) if broken else 0.0


class _Meter:
    """Measures how busy the serving thread and the process are, apart from the models."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._serving_before, self._process_before = self._serving_seconds(), time.process_time()
        self._read_at = time.monotonic()
        self._serving = self._working = 0.0

    def read(self, computed: float, inline: float) -> None:
        """Read the clocks.

        Args:
            computed: Processor seconds that models used since the last reading.
            inline: Seconds that the serving thread spent in models.
        """
        serving, process, now = self._serving_seconds(), time.process_time(), time.monotonic()
        elapsed, self._read_at = max(now - self._read_at, _PAUSE_SECONDS), now
        weight = 1.0 - math.exp(-elapsed / _MEMORY_SECONDS)
        others = max(0.0, serving - self._serving_before - inline) / elapsed
        self._serving += weight * (min(1.0, others) - self._serving)
        working = max(0.0, process - self._process_before - computed) / elapsed
        self._working += weight * (working - self._working)
        self._serving_before, self._process_before = serving, process

    def _serving_seconds(self) -> float:
        """Return the seconds for which this thread has run or waited for a processor."""
        try:
            running, waiting, _ = self._file.read_text().split()
        except (OSError, ValueError):  # a kernel without schedstat
            return time.thread_time()
        return (int(running) + int(waiting)) / 1e9

    def demand(self, processors: float) -> ServerDemand:
        """Return the smoothed measurements."""
        return ServerDemand(self._serving, self._working, processors)
