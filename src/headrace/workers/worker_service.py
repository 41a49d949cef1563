"""The Service of a worker: its own engine answers requests; states and metrics cover all workers.

The worker reports changed states of models to its supervisor, at most once per event loop iteration.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.base.errors import FailedPrecondition, NotFound, Unavailable
from headrace.batching.capacity import LoadReport
from headrace.batching.statistics import VersionCounts, added_up
from headrace.frontends.service import Service
from headrace.lifecycle.version_states import VersionStatus
from headrace.serving.engine import Engine
from headrace.workers import state_merge
from headrace.workers.messages import (
    Act,
    Beat,
    Count,
    Counted,
    Message,
    ModelState,
    Scrape,
    Scraped,
    States,
    View,
)


class StateReporter:
    """Reports changed model states. Serving thread only."""

    def __init__(self, engine: Engine, send: Callable[[States], object]) -> None:
        """Report on an engine's models from now on.

        Args:
            engine: The engine.
            send: Sends a message to the supervisor.
        """
        self._engine = engine
        self._send = send
        self._changed: set[str] = set()
        self._told: dict[str, ModelState] = {}
        self._troubles: dict[tuple[str, int], str] = {}
        self._ready = self._planned = False

    def changed(self, model: str) -> None:
        """Schedule a report on a model, one of whose versions has changed."""
        self._changed.add(model)
        self._plan()

    def wanted(self, models: Iterable[str]) -> None:
        """Schedule a report on these models and all reported before, after a change of the wanted state."""
        self._changed.update(models, self._told)
        self._plan()

    def look(self) -> None:
        """Poll whether isolated versions can answer, since the end of their processes causes no event."""
        troubles = {
            (loaded.name, loaded.version): loaded.trouble
            for loaded in self._engine.manager.all_loaded()
            if loaded.trouble
        }
        if troubles != self._troubles:
            for (name, _), _ in troubles.items() ^ self._troubles.items():
                self.changed(name)
            self._troubles = troubles

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._planned = False
        news: dict[str, ModelState | None] = {}
        for name in self._changed:
            told = model_state(self._engine, name)
            if told == self._told.get(name):
                continue
            news[name] = told
            if told is None:
                del self._told[name]
            else:
                self._told[name] = told
        self._changed.clear()
        ready = self._engine.manager.ready()
        if news or ready != self._ready:
            self._ready = ready
            self._send(States(news, ready))


def model_state(engine: Engine, model: str) -> ModelState | None:
    """Return one process's state of a model; None if it does not know the model.

    Args:
        engine: The process's engine.
        model: The model's name.
    """
    manager = engine.manager
    try:
        statuses = manager.status(model)
        return ModelState(
            # The number of requests changes all the time and matters only within the process.
            versions=tuple(replace(one, outstanding=0) for one in statuses),
            answers=any(one.answers for one in statuses),
            problems=tuple(manager.warnings(model)),
        )
    except NotFound:
        return None


_ANSWER_SECONDS = 5.0
"""Less than Prometheus' scrape timeout of ten seconds."""
_MOST_QUESTIONS = 64


class WorkerService(Service):
    """A Service that reports on all workers. Serving thread only.

    Attributes:
        engine: This worker's engine.
        as_protobuf: Always False: the metrics of several processes are not available as protobuf.
    """

    as_protobuf = False

    def __init__(self, engine: Engine, send: Callable[[Message], object]) -> None:
        """Serve from a worker's engine.

        Args:
            engine: The engine.
            send: Sends a message to the supervisor.
        """
        super().__init__(engine)
        self.engine = engine
        self._send = send
        self._view: dict[str, ModelState] = {}
        self._all_ready = False
        self._report: LoadReport | None = None
        self._on_report: Callable[[LoadReport], object] | None = None
        self._questions: dict[int, asyncio.Future[Scraped | Counted]] = {}
        self._numbers = itertools.count()
        self._acting: Counter[str] = Counter()

    # --- from the supervisor ---

    def see(self, view: View) -> None:
        """Apply changes to the merged state of all workers."""
        for name, told in view.models.items():
            if told is None:
                self._view.pop(name, None)
            else:
                self._view[name] = told
        self._all_ready = view.ready

    def told(self, message: Scraped | Counted) -> None:
        """Pass a response to the call that waits for it."""
        waiting = self._questions.pop(message.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def counted(self, message: Count) -> Counted:
        """Return this worker's counts for another worker, without models that it does not serve."""
        found: list[VersionCounts] = []
        for model in message.models:
            with suppress(NotFound, Unavailable, FailedPrecondition):
                found += self._own_counts([model], message.version)
        return Counted(message.number, tuple(found))

    def beat(self, beat: Beat) -> Beat:
        """Report the load of all workers, and return a beat with this worker's load."""
        if beat.report is not None and self._on_report is not None:
            self._on_report(beat.report)
        return Beat(self._report)

    def act(self, message: Act) -> None:
        """Load or unload a model as another worker did, unless an own act on the model is still in transit.

        The supervisor sends all acts to all workers in the same order, and the last one wins. This worker
        applied its own act when it sent it. Acts of others that arrive before its own comes back precede it
        in that order, and are skipped.
        """
        model = message.model
        if message.is_own:
            self._acting -= Counter((model,))  # also drops entries that reach 0
        elif self._acting[model] or not self._engine.manager.knows(model):
            return
        elif message.unload:
            self._engine.manager.unload(model)
        else:
            self._engine.manager.reload(model)

    # --- from clients ---

    def ready(self) -> bool:
        """Return whether the server is ready for requests, whichever worker gets them."""
        return self._all_ready and super().ready()

    def answers(self, model: str) -> bool:
        """Return whether a model answers in every worker."""
        seen = self._view.get(model)
        return seen is not None and seen.answers and any(one.answers for one in super().status(model))

    def status(self, model: str) -> list[VersionStatus]:
        """Return the status of each of a model's versions, merged over all workers, newest first.

        Raises:
            NotFound: There is no such model.
        """
        super().status(model)
        merged = state_merge.model([model_state(self._engine, model), self._view.get(model)])
        return [] if merged is None else list(merged.versions)

    def report_load(self, on_report: Callable[[LoadReport], object]) -> None:
        """Report the load of all workers each time the supervisor sends it."""
        self._on_report = on_report
        super().report_load(self._keep)

    def _keep(self, report: LoadReport) -> None:
        self._report = report

    async def metrics(self) -> bytes:
        """Return the merged metrics of all workers.

        Raises:
            Unavailable: The supervisor does not answer.
        """
        told: Scraped = await self._answer(Scrape)
        return told.text

    async def counts(self, model: str = "", version: int | None = None) -> list[VersionCounts]:
        """Return the counts of versions, summed over all workers that answer.

        Raises:
            HeadraceError: There is no such model or version, or it is not ready.
            Unavailable: The supervisor does not answer.
        """
        models = [model] if model else self.models()
        mine = self._own_counts(models, version)
        others: Counted = await self._answer(lambda number: Count(number, tuple(models), version))
        return added_up((*mine, *others.counts))

    async def _answer(self, question: Callable[[int], Scrape | Count]) -> Any:
        """Send a numbered request to the supervisor, and return the response."""
        if len(self._questions) >= _MOST_QUESTIONS:
            raise Unavailable(
                f"{_MOST_QUESTIONS} callers already wait for metrics or statistics; retry later"
            )
        number = next(self._numbers)
        waiting = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send(question(number))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await waiting
        except TimeoutError:
            raise Unavailable("the supervisor of this server does not answer; retry later") from None
        finally:
            self._questions.pop(number, None)

    def reload(self, model: str) -> None:
        """Load a model and retry its failed versions, in every worker.

        Raises:
            FailedPrecondition: Administration over the network is off.
            NotFound: There is no such model.
        """
        super().reload(model)
        self._act(model, unload=False)

    def unload(self, model: str) -> None:
        """Unload all versions of a model in every worker, until it is loaded again.

        Raises:
            FailedPrecondition: Administration over the network is off.
            NotFound: There is no such model.
        """
        super().unload(model)
        self._act(model, unload=True)

    def _act(self, model: str, *, unload: bool) -> None:
        self._acting[model] += 1
        self._send(Act(model, unload))
