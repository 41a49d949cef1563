"""The metrics of the whole server: each worker is asked for its own; what it told last stands for silence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection

from headrace.frontends.metric import Metric
from headrace.workers import totals
from headrace.workers.messages import ModelTold, Scrape, Scraped
from headrace.workers.totals import READY, VERSION_STATE, Family, Version

_ROUND_SECONDS = 2.0
_LEAST_PAUSE_SECONDS, _PAUSE_SHARE = 5.0, 100.0

WORKERS = Metric("headrace_workers", "gauge", "Processes that serve, as configured.", ())
WORKERS_READY = Metric("headrace_workers_ready", "gauge", "Workers that get new connections now.", ())
RESTARTS = Metric(
    "headrace_worker_restarts", "counter", "How often a worker that had ended was started again.", ()
)
METRICS = (WORKERS, WORKERS_READY, RESTARTS)

Ask = Callable[[Scrape], Collection[int]]
"""Asks all workers that answer for their metrics, and says which these are."""


class Scraping:
    """Asks and puts together. One round at a time; who comes meanwhile shares the next."""

    def __init__(self, ask: Ask) -> None:
        """Begin without any metrics.

        Args:
            ask: Asks the workers.
        """
        self._ask = ask
        self._last: dict[int, str] = {}
        self._kept: dict[str, Family] = {}
        self._numbers = itertools.count()
        self._number = -1
        self._awaited: set[int] = set()
        self._complete = asyncio.Event()
        self._now: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._due = 0.0

    # --- rounds ---

    async def round(self) -> None:
        """Have each worker's metrics of a moment after this call, or the last that it told."""
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
        """A worker tells its metrics."""
        self._last[worker] = scraped.text.decode()
        if scraped.number == self._number:
            self.pass_over(worker)

    def pass_over(self, worker: int) -> None:
        """A worker is waited for no longer: it has told, does not answer, or has ended."""
        self._awaited.discard(worker)
        if not self._awaited:
            self._complete.set()

    async def round_if_due(self) -> None:
        """Have them now and then, so that what a worker loses when it is killed is little.

        At most a hundredth of the time goes into it, however many models there are.
        """
        clock = asyncio.get_running_loop()
        began = clock.time()
        if began < self._due:
            return
        await self.round()
        took = clock.time() - began
        self._due = clock.time() + max(_LEAST_PAUSE_SECONDS, _PAUSE_SHARE * took)

    # --- what is kept ---

    def end(self, worker: int) -> None:
        """A worker has ended: its counts are kept."""
        last = self._last.pop(worker, None)
        if last is not None:
            totals.keep(self._kept, totals.parse(last))
        self.pass_over(worker)

    def forget_but(self, known: Collection[Version]) -> None:
        """Forget what ended workers counted of versions that are not wanted any more."""
        totals.forget(self._kept, known)

    async def text(self, added: dict[str, Family]) -> bytes:
        """All metrics, as of the last round.

        Args:
            added: What the supervisor says itself.
        """
        last, kept = list(self._last.values()), {**self._kept}

        def put_together() -> bytes:
            return totals.merged(map(totals.parse, last), kept, added).encode()

        return await asyncio.to_thread(put_together)


def own_families(
    view: dict[str, ModelTold], *, ready: bool, workers: int, workers_ready: int, restarts: int
) -> dict[str, Family]:
    """What the supervisor says itself.

    Args:
        view: What all workers tell of models.
        ready: Whether the server is ready.
        workers: How many workers there are to be.
        workers_ready: How many get new connections.
        restarts: How many were started again.
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
