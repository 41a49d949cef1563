"""State shared by all workers, kept by the supervisor: wanted state, model states, metrics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path

from headrace.base.clock import LoopClock
from headrace.batching.statistics import VersionCounts, added_up
from headrace.config import ServerConfig
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.loader_threads import LoaderThreads
from headrace.lifecycle.source import DirectorySource
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.workers import state_merge, worker_shares
from headrace.workers.messages import (
    Act,
    Count,
    Counted,
    Message,
    ModelState,
    Scrape,
    Scraped,
    States,
    View,
    Wants,
)
from headrace.workers.metrics import Scraping, Version, own_families
from headrace.workers.state_merge import Standing
from headrace.workers.worker_processes import Place

# Sum the counts of versions over all workers: one worker asks, and the supervisor asks the others.


_ANSWER_SECONDS = 2.0

Ask = Callable[[Count, int], Collection[int]]
"""Requests counts from all workers that answer beats except one, and returns the numbers of these workers."""


class _Question:
    """A request in progress: the workers awaited, and the counts received."""

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        self.told: list[VersionCounts] = []
        self.complete = asyncio.Event()


class Counting:
    """Collects counts from the workers anew for each request; none is older than the request."""

    def __init__(self, ask: Ask) -> None:
        """Begin without requests.

        Args:
            ask: Requests the workers' counts.
        """
        self._ask = ask
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}

    async def others(self, asker: int, asked: Count) -> Counted:
        """Return the counts of all workers except the asking one and those that do not answer in time.

        Args:
            asker: Number of the asking worker.
            asked: Its request.
        """
        number = next(self._numbers)
        question = self._questions[number] = _Question()
        question.awaited = set(self._ask(Count(number, asked.models, asked.version), asker))
        try:
            if question.awaited:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await question.complete.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[number]
        return Counted(asked.number, tuple(added_up(question.told)))

    def told(self, worker: int, counted: Counted) -> None:
        """Add a worker's counts to the request that they belong to."""
        question = self._questions.get(counted.number)
        if question is not None and worker in question.awaited:
            question.told += counted.counts
            self._leave(question, worker)

    def pass_over(self, worker: int) -> None:
        """Stop waiting for a worker that does not answer or has ended."""
        for question in self._questions.values():
            self._leave(question, worker)

    def _leave(self, question: _Question, worker: int) -> None:
        question.awaited.discard(worker)
        if not question.awaited:
            question.complete.set()


class MergedStates:
    """States of all models in all workers, merged incrementally.

    Attributes:
        view: Merged state of each model.
        ready: Whether the server is ready.
    """

    def __init__(self) -> None:
        """Begin without states."""
        self.view: dict[str, ModelState] = {}
        self.ready = False
        self._told: dict[int, dict[str, ModelState]] = {}
        self._ready: dict[int, bool] = {}
        self._counted: list[int] = []
        self._changed: set[str] = set()

    def begin(self, worker: int) -> None:
        """Reset a worker's states when a new process begins at its place."""
        self._changed |= self._told.get(worker, {}).keys()
        self._told[worker], self._ready[worker] = {}, False

    def end(self, worker: int) -> None:
        """Drop a worker's states when its process has ended."""
        self._told.pop(worker, None)
        self._ready.pop(worker, None)

    def take(self, worker: int, states: States) -> None:
        """Apply a worker's changes."""
        told = self._told.setdefault(worker, {})
        for name, model in states.models.items():
            if model is None:
                told.pop(name, None)
            else:
                told[name] = model
        self._changed |= states.models.keys()
        self._ready[worker] = states.ready

    def is_ready(self, worker: int) -> bool:
        """Return whether a worker has reported that its models have been tried and one is ready."""
        return self._ready.get(worker, False)

    def changes(self, standings: Mapping[int, Standing]) -> View | None:
        """Merge the changed states and return the changes of the view; None if there are none.

        Args:
            standings: States of the running workers.
        """
        counted = [number for number, one in standings.items() if state_merge.is_counted(one)]
        if counted != self._counted:
            self._changed |= self.view.keys() | {name for told in self._told.values() for name in told}
        self._counted = counted
        changed: dict[str, ModelState | None] = {}
        for name in self._changed:
            model = state_merge.model([self._told.get(number, {}).get(name) for number in counted])
            if model == self.view.get(name):
                continue
            changed[name] = model
            if model is None:
                del self.view[name]
            else:
                self.view[name] = model
        self._changed.clear()
        ready = state_merge.ready(standings.values())
        if not changed and ready == self.ready:
            return None
        self.ready = ready
        return View(changed, ready)

    def whole(self) -> View:
        """Return the whole view, for a new worker."""
        return View(dict(self.view), self.ready)


_GATHER_SECONDS = 0.005
"""Time for which changes are collected before they are sent to all workers."""


class SharedState:
    """Merges the messages of the workers, and sends the result to all of them.

    Attributes:
        restarts: Number of worker restarts.
        was_ready: Whether the server has ever been ready.
    """

    def __init__(self, models: Path | None, config: ServerConfig, places: Sequence[Place]) -> None:
        """Create the Source, if there are models, without starting it.

        Args:
            models: The directory of models.
            config: The server's settings.
            places: The workers' places.
        """
        self._places = places
        self._merged = MergedStates()
        self._scraping = Scraping(self._ask)
        self._counting = Counting(self._ask_others)
        self._wants: Wants | None = None
        self._known: set[Version] | None = None  # None: unknown, so the next `_forget` checks all kept counts
        self._unloaded: set[str] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._planned: asyncio.TimerHandle | None = None
        self._is_over = False
        self.restarts = 0
        self.was_ready = False
        self._source: DirectorySource | None = None
        if models is not None or config.models:
            clock = LoopClock()
            clock.bind(asyncio.get_running_loop())
            threads = LoaderThreads(clock, lambda: False)  # no requests to give way to
            self._source = DirectorySource(models, self._want, clock, threads, config)

    def start(self) -> None:
        """Start scanning the model directories; no other process does so."""
        if self._source is None:
            self._want({}, {})
        else:
            self._source.start()

    def stop(self) -> None:
        """Stop scanning, and freeze the shared view: a worker that ends early makes no other unready."""
        self._is_over = True
        if self._planned is not None:
            self._planned.cancel()
        if self._source is not None:
            self._source.stop()

    @property
    def has_tried(self) -> bool:
        """Whether each wanted version is ready in all workers, or has failed in one."""
        if self._wants is None or not self._wants.models.keys() <= self._merged.view.keys():
            return False
        wanted = (one for told in self._merged.view.values() for one in told.versions if one.wanted)
        return all(one.state in (State.READY, State.FAILED) for one in wanted)

    @property
    def statuses(self) -> dict[str, Sequence[VersionStatus]]:
        """Merged status of the versions of all models."""
        return {name: told.versions for name, told in self._merged.view.items()}

    # --- starts and ends of workers ---

    def is_ready(self, place: Place) -> bool:
        """Return whether a worker's models have been tried and one is ready."""
        return self._merged.is_ready(place.number)

    def began(self, place: Place) -> None:
        """Send a new process the current state."""
        self._merged.begin(place.number)
        if self._wants is not None:
            place.send(self._wants)
        place.send(self._merged.whole())
        for model in sorted(self._unloaded):
            place.send(Act(model, unload=True))

    def ended(self, place: Place) -> None:
        """Record that a process has ended."""
        self._merged.end(place.number)
        self._scraping.end(place.number)
        self._counting.pass_over(place.number)
        self.changed()

    def silent(self, place: Place) -> None:
        """Record that a worker does not answer."""
        self._scraping.pass_over(place.number)
        self._counting.pass_over(place.number)
        self.changed()

    def changed(self) -> None:
        """Schedule an update of the shared view, for example after a worker has begun to serve."""
        if self._planned is None and not self._is_over:
            self._planned = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._planned = None
        standings = {
            place.number: standing
            for place in self._places
            if (standing := place.standing(ready=self._merged.is_ready(place.number))) is not None
        }
        view = self._merged.changes(standings)
        self.was_ready = self.was_ready or self._merged.ready
        if view is not None:
            self._forget()
            for place in self._places:
                place.send(view)

    # --- messages ---

    def told(self, place: Place, message: Message) -> None:
        """Handle a message of a worker."""
        if isinstance(message, States):
            self._merged.take(place.number, message)
            self.changed()
        elif isinstance(message, Act):
            self._act(place, message)
        elif isinstance(message, Scraped):
            self._scraping.told(place.number, message)
        elif isinstance(message, Counted):
            self._counting.told(place.number, message)
        elif isinstance(message, Scrape):
            self._answer(self._scrape(place, message))
        elif isinstance(message, Count):
            self._answer(self._count(place, message))

    def _answer(self, answering: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _act(self, asked: Place, message: Act) -> None:
        if message.unload:
            self._unloaded.add(message.model)
        else:
            self._unloaded.discard(message.model)
        for place in self._places:  # all in the same order
            place.send(Act(message.model, message.unload, is_own=place is asked))

    def _want(self, models: Mapping[str, Wanted], unusable: Mapping[str, str]) -> None:
        self._wants = worker_shares.of_wanted(models, unusable, len(self._places))
        self._unloaded &= models.keys()
        self._forget()
        for place in self._places:
            place.send(self._wants)

    def _forget(self) -> None:
        """Drop the kept counts of versions that are no longer wanted, and that no worker has any more."""
        if not self._scraping.keeps:  # nothing to drop: save the loop over all models
            self._known = None
            return
        wants = {} if self._wants is None else self._wants.models
        known = {(name, str(number)) for name, one in wants.items() for number in one.versions}
        for name, told in self._merged.view.items():
            known.update((name, str(one.version)) for one in told.versions)
        if self._known is None or not self._known <= known:
            self._scraping.forget_but(known)
        self._known = known

    # --- metrics and counts ---

    async def look_after(self) -> None:
        """Collect the metrics if due, so that few counts are lost when a worker is killed."""
        await self._scraping.round_if_due()

    def _ask(self, message: Scrape) -> list[int]:
        asked = [place for place in self._places if place.answers]
        for place in asked:
            place.send(message)
        return [place.number for place in asked]

    async def _scrape(self, place: Place, message: Scrape) -> None:
        await self._scraping.round()
        added = own_families(
            self._merged.view,
            ready=self._merged.ready,
            workers=len(self._places),
            workers_ready=sum(one.answers and self.is_ready(one) for one in self._places),
            restarts=self.restarts,
        )
        place.send(Scraped(message.number, await self._scraping.text(added)))

    def _ask_others(self, message: Count, asker: int) -> list[int]:
        asked = [place for place in self._places if place.answers and place.number != asker]
        for place in asked:
            place.send(message)
        return [place.number for place in asked]

    async def _count(self, place: Place, message: Count) -> None:
        place.send(await self._counting.others(place.number, message))
