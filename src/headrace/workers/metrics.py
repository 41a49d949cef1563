"""Metrics of the whole server: collected from its workers, and merged without a process label.

Merging is pure. It works on Prometheus' text format line by line, so it includes every metric of a worker.
Counters of workers that have ended are kept, so the totals of a model never fall. A silent worker's last
metrics are reused.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from headrace.frontends.metrics.metric_types import Metric
from headrace.workers.messages import ModelState, Scrape, Scraped

Number = int | float
Series = dict[str, Number]

Way = Literal["sum", "max", "min", "server"]
"""How the workers' values of a gauge are merged; ``server``: the supervisor's value replaces them."""

READY, VERSION_STATE = "headrace_ready", "headrace_version_state"

# By name, so that the supervisor need not import the modules that measure.
GAUGES: Mapping[str, Way] = {
    READY: "server",
    VERSION_STATE: "server",
    "headrace_workers": "server",
    "headrace_workers_ready": "server",
    "headrace_cache_bytes": "sum",
    "headrace_queued_rows": "sum",
    "headrace_outstanding_requests": "sum",
    "headrace_isolated_memory_bytes": "sum",
    "headrace_isolated_ready": "min",
    "headrace_load_attempts": "max",
    "headrace_default_version": "min",
    "headrace_model_age_seconds": "max",
    "headrace_model_max_age_seconds": "max",
    "headrace_model_stale": "max",
    "headrace_objective_seconds": "max",
    "headrace_objective_target": "max",
    "headrace_objective_budget_remaining": "min",
    "headrace_objective_burn_rate": "max",
    # Each worker has its own share of the processors: the busiest one determines the load.
    "headrace_load": "max",
    "headrace_model_load": "max",
    "headrace_serving_thread_busy": "max",
    # Shared by all workers: each reports the same value, or a slightly older one.
    "headrace_access_keys": "max",
    "headrace_access_file_broken": "max",
    "headrace_tls_certificate_expires_seconds": "min",
    "headrace_disk_free_ratio": "min",
    "headrace_archive_queued_keys": "max",
    "headrace_archive_queue_oldest_seconds": "max",
    "headrace_archive_store_breaker_open": "max",
    "process_virtual_memory_bytes": "sum",
    "process_resident_memory_bytes": "sum",
    "process_open_fds": "sum",
    "process_start_time_seconds": "min",
    "process_max_fds": "min",
}
"""Every gauge of a server with workers. Counters and histograms are sums."""

_TOGETHER: Mapping[Way, Callable[[Number, Number], Number]] = {
    "sum": operator.add,
    "max": max,
    "min": min,
    "server": max,  # any function: the supervisor's value replaces the result
}
_COUNTS = frozenset({"counter", "histogram"})
_TRITONS = ("nv_inference_", "nv_cache_")  # declared as gauges, but counters in fact
_OF_A_VERSION = re.compile(r'[{,]model="([^"]*)",(?:.*,)?version="([^"]*)"')


class Family(NamedTuple):
    """One metric family.

    Attributes:
        head: Its HELP and TYPE lines.
        kind: Its type.
        series: Values by series, that is, name and labels as written.
    """

    head: tuple[str, ...]
    kind: str
    series: Series


Version = tuple[str, str]
"""A model's name and a version number."""
Counts = Mapping[Version, Number]
"""By version, the sum of its counters in a worker's metrics."""
Leaving = Mapping[Version, frozenset[int]]
"""By version that some workers have unloaded, the workers whose counts of it have not been reset."""


def parse(text: str) -> dict[str, Family]:
    """Parse Prometheus' text format.

    Args:
        text: Metrics as headrace writes them, each family with a TYPE line in front.

    Returns:
        The families by the names in their TYPE lines, in order.
    """
    found: dict[str, Family] = {}
    help_line: tuple[str, ...] = ()
    series: Series = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_line = (line,)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            series = {}
            found[name] = Family((*help_line, line), kind, series)
            help_line = ()
        elif line:
            key, _, value = line.rpartition(" ")
            series[key] = _number(value)
    return found


def leaving(before: Leaving, counted: Mapping[int, Counts], found: Mapping[int, Counts]) -> Leaving:
    """Return the versions that only some workers have unloaded, so that the sums over all workers would fall.

    Args:
        before: The previous result.
        counted: By worker, the counts of its versions in the previous round.
        found: By worker, the counts of its versions in this round.

    Returns:
        By version, the workers whose counts have not been reset. A worker that has loaded the version again
        starts at 0 and is left out.
    """
    lost = {
        version
        for worker, counts in counted.items()
        if worker in found
        for version, count in counts.items()
        if found[worker].get(version, -1) < count
    }
    left: dict[Version, frozenset[int]] = {}
    for version in {*lost, *before}:
        had = before.get(version) or [worker for worker, counts in counted.items() if version in counts]
        still = frozenset(
            worker
            for worker in had
            if worker in found and found[worker].get(version, -1) >= counted.get(worker, {}).get(version, 0)
        )
        if still:
            left[version] = still
    return left


def merged(
    texts: Iterable[Mapping[str, Family]],
    kept: Mapping[str, Family],
    added: Mapping[str, Family],
    there: Collection[Version],
    hidden: Collection[Version] = (),
) -> str:
    """Merge metrics.

    Args:
        texts: Metrics of each running worker.
        kept: Kept counts of ended workers.
        added: The supervisor's own metrics, which replace those of workers.
        there: Versions that running workers have. Kept counts of other versions are left out.
        hidden: Versions whose counts are left out; see ``leaving``.

    Returns:
        The merged metrics in Prometheus' text format.
    """
    families: dict[str, Family] = {}
    for text in (*texts, without(kept, lambda version: version not in there)):
        _add(families, text)
    if hidden:
        counts = {name: one for name, one in families.items() if is_count(name, one.kind)}
        families |= without(counts, lambda version: version in hidden)
    for name, own in added.items():
        head = families[name].head if name in families else own.head
        families[name] = own._replace(head=head)
    lines: list[str] = []
    for family in families.values():
        lines += family.head
        lines += [f"{key} {_written(value)}" for key, value in family.series.items()]
    return "\n".join(lines) + "\n"


def keep(kept: dict[str, Family], last: Mapping[str, Family]) -> None:
    """Keep the counts of a worker that has ended.

    Args:
        kept: Kept counts so far; updated in place. Changed families are replaced: another thread may still
            read the old ones.
        last: The worker's last metrics.
    """
    counts = {name: one for name, one in last.items() if is_count(name, one.kind)}
    together: dict[str, Family] = {}
    for text in ({name: kept[name] for name in counts if name in kept}, counts):
        _add(together, text)
    kept.update(together)


def forget(kept: dict[str, Family], known: Collection[Version]) -> None:
    """Drop the kept counts of versions that are not known any more.

    Args:
        kept: Kept counts; updated in place.
        known: The versions that are loaded or wanted.
    """
    left = without(kept, lambda version: version not in known)
    kept.clear()
    kept.update(left)


def is_count(name: str, kind: str) -> bool:
    """Return whether a metric counts, so that its values never decrease while a worker runs."""
    return kind in _COUNTS or name.startswith(_TRITONS)


def counts_of(text: Mapping[str, Family]) -> dict[Version, Number]:
    """Return the sum of its counters for each version that has series in the metrics."""
    found: dict[Version, Number] = {}
    for name, family in text.items():
        counts = is_count(name, family.kind)
        for key, value in family.series.items():
            if match := _OF_A_VERSION.search(key):
                version = match[1], match[2]
                found[version] = found.get(version, 0) + (value if counts else 0)
    return found


def without(text: Mapping[str, Family], gone: Callable[[Version], bool]) -> dict[str, Family]:
    """Return metrics without the series of some versions.

    Args:
        text: The metrics.
        gone: Returns whether a version's series are to be left out.
    """

    def stays(key: str) -> bool:
        match = _OF_A_VERSION.search(key)
        return match is None or not gone((match[1], match[2]))

    return {
        name: one._replace(series={key: value for key, value in one.series.items() if stays(key)})
        for name, one in text.items()
    }


def _add(families: dict[str, Family], text: Mapping[str, Family]) -> None:
    for name, family in text.items():
        if name not in families:
            families[name] = family._replace(series=dict(family.series))
            continue
        series = families[name].series
        together = _TOGETHER[GAUGES.get(name, "sum")]
        for key, value in family.series.items():
            series[key] = together(series[key], value) if key in series else value


def _number(text: str) -> Number:
    return int(text) if text.isdecimal() else float(text)


def _written(value: Number) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


_ROUND_SECONDS = 2.0
_LEAST_PAUSE_SECONDS, _PAUSE_SHARE = 5.0, 100.0

WORKERS = Metric("headrace_workers", "gauge", "Configured number of serving processes.", ())
WORKERS_READY = Metric(
    "headrace_workers_ready", "gauge", "Workers that respond and have a model that is ready.", ()
)
RESTARTS = Metric("headrace_worker_restarts", "counter", "Restarts of workers that had ended.", ())
METRICS = (WORKERS, WORKERS_READY, RESTARTS)

Ask = Callable[[Scrape], Collection[int]]
"""Requests metrics from all workers that answer beats, and returns the numbers of these workers."""


class Scraping:
    """Collects and merges the metrics in rounds, one at a time; callers during a round share the next one."""

    def __init__(self, ask: Ask) -> None:
        """Begin without metrics.

        Args:
            ask: Requests the workers' metrics.
        """
        self._ask = ask
        self._last: dict[int, str] = {}
        self._kept: dict[str, Family] = {}
        self._counted: Mapping[int, Counts] = {}
        self._leaving: Leaving = {}
        self._numbers = itertools.count()
        self._number = -1
        self._awaited: set[int] = set()
        self._complete = asyncio.Event()
        self._now: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._due = 0.0

    # --- rounds ---

    async def round(self) -> None:
        """Collect each worker's metrics, measured after this call; keep the last ones of a silent worker."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._run(self._now))
        await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        self._now, self._next = self._next, None
        self._number = next(self._numbers)
        self._complete.clear()
        self._awaited = set(self._ask(Scrape(self._number)))
        if not self._awaited:
            return
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            pass

    def told(self, worker: int, scraped: Scraped) -> None:
        """Store a worker's metrics."""
        self._last[worker] = scraped.text.decode()
        if scraped.number == self._number:
            self.pass_over(worker)

    def pass_over(self, worker: int) -> None:
        """Stop waiting for a worker that has reported, does not answer, or has ended."""
        self._awaited.discard(worker)
        if not self._awaited:
            self._complete.set()

    async def round_if_due(self) -> None:
        """Collect the metrics if due, so that few counts are lost when a worker is killed.

        Collecting takes at most a hundredth of the time, however many models there are.
        """
        clock = asyncio.get_running_loop()
        began = clock.time()
        if began < self._due:
            return
        await self.round()
        took = clock.time() - began
        self._due = clock.time() + max(_LEAST_PAUSE_SECONDS, _PAUSE_SHARE * took)

    # --- kept metrics ---

    def end(self, worker: int) -> None:
        """Keep the counts of a worker that has ended."""
        last = self._last.pop(worker, None)
        self._counted = {number: one for number, one in self._counted.items() if number != worker}
        if last is not None:
            text = parse(last)
            keep(self._kept, without(text, self._leaving.__contains__))
        left = {version: workers - {worker} for version, workers in self._leaving.items()}
        self._leaving = {version: workers for version, workers in left.items() if workers}
        self.pass_over(worker)

    @property
    def keeps(self) -> bool:
        """Whether counts of a worker that has ended are kept."""
        return bool(self._kept)

    def forget_but(self, known: Collection[Version]) -> None:
        """Drop the kept counts of all versions except the known ones."""
        forget(self._kept, known)

    async def text(self, added: dict[str, Family]) -> bytes:
        """Return all metrics as of the last round, in Prometheus' text format.

        Args:
            added: The supervisor's own metrics.
        """
        last, kept, counted, before = {**self._last}, {**self._kept}, self._counted, self._leaving

        def put_together() -> tuple[bytes, dict[int, dict[Version, Number]], Leaving]:
            texts = {worker: parse(text) for worker, text in last.items()}
            found = {worker: counts_of(text) for worker, text in texts.items()}
            going = leaving(before, counted, found)
            there = set().union(*found.values())
            return merged(texts.values(), kept, added, there, going).encode(), found, going

        text, found, self._leaving = await asyncio.to_thread(put_together)
        self._counted = {worker: one for worker, one in found.items() if worker in self._last}
        return text


def own_families(
    view: dict[str, ModelState], *, ready: bool, workers: int, workers_ready: int, restarts: int
) -> dict[str, Family]:
    """Return the supervisor's own metrics.

    Args:
        view: Merged state of the models.
        ready: Whether the server is ready.
        workers: Configured number of workers.
        workers_ready: Number of workers that answer beats and are ready.
        restarts: Number of worker restarts.
    """
    states = {
        f'{VERSION_STATE}{{model="{name}",state="{one.state.value}",version="{one.version}"}}': 1.0
        for name, told in sorted(view.items())
        for one in told.versions
    }
    own = {WORKERS: workers, WORKERS_READY: workers_ready, RESTARTS: restarts}
    return {
        VERSION_STATE: Family((), "gauge", states),
        READY: Family((), "gauge", {READY: float(ready)}),
        **dict(_family(metric, value) for metric, value in own.items()),
    }


def _family(metric: Metric, value: float) -> tuple[str, Family]:
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    head = (f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}")
    return name, Family(head, metric.kind, {name: float(value)})
