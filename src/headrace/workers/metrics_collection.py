"""Metrics of the whole server, collected from its workers; a silent worker's last ones are reused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping

from headrace.frontends.metrics.metric_type import Metric
from headrace.workers import metrics_merge
from headrace.workers.messages import ModelTold, Scrape, Scraped
from headrace.workers.metrics_merge import (
    READY,
    VERSION_STATE,
    Counts,
    Family,
    Leaving,
    Number,
    Version,
)

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
    """Collects and merges the metrics, one round at a time; concurrent callers share the next round."""

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
            text = metrics_merge.parse(last)
            metrics_merge.keep(self._kept, metrics_merge.without(text, self._leaving.__contains__))
        left = {version: workers - {worker} for version, workers in self._leaving.items()}
        self._leaving = {version: workers for version, workers in left.items() if workers}
        self.pass_over(worker)

    @property
    def keeps(self) -> bool:
        """Whether counts of a worker that has ended are kept."""
        return bool(self._kept)

    def forget_but(self, known: Collection[Version]) -> None:
        """Drop the kept counts of all versions except the known ones."""
        metrics_merge.forget(self._kept, known)

    async def text(self, added: dict[str, Family]) -> bytes:
        """Return all metrics as of the last round, in Prometheus' text format.

        Args:
            added: The supervisor's own metrics.
        """
        last, kept, counted, before = {**self._last}, {**self._kept}, self._counted, self._leaving

        def put_together() -> tuple[bytes, dict[int, dict[Version, Number]], Leaving]:
            texts = {worker: metrics_merge.parse(text) for worker, text in last.items()}
            found = {worker: metrics_merge.counts_of(text) for worker, text in texts.items()}
            leaving = metrics_merge.leaving(before, counted, found)
            there = set().union(*found.values())
            return metrics_merge.merged(texts.values(), kept, added, there, leaving).encode(), found, leaving

        text, found, self._leaving = await asyncio.to_thread(put_together)
        self._counted = {worker: one for worker, one in found.items() if worker in self._last}
        return text


def own_families(
    view: dict[str, ModelTold], *, ready: bool, workers: int, workers_ready: int, restarts: int
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
