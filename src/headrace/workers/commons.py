"""What all workers have in common, at the supervisor: what is wanted, what is told of models, the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path

from headrace.clock import LoopClock
from headrace.config import ServerConfig
from headrace.lifecycle.background import LoaderThreads
from headrace.lifecycle.source import DirectorySource
from headrace.lifecycle.state import State, VersionStatus
from headrace.lifecycle.wanted import Wanted
from headrace.workers import wanted
from headrace.workers.counting import Counting
from headrace.workers.messages import Act, Count, Counted, Message, Scrape, Scraped, States, Wants
from headrace.workers.place import Place
from headrace.workers.scraping import Scraping, own_families
from headrace.workers.together import Together

_GATHER_SECONDS = 0.005
"""How long changes are gathered before all workers are told of them."""


class Commons:
    """Hears what workers tell, puts it together, and tells all of them.

    Attributes:
        restarts: How often a worker was started again.
        was_ready: Whether the server has been ready.
    """

    def __init__(self, models: Path | None, config: ServerConfig, places: Sequence[Place]) -> None:
        """Know nothing yet.

        Args:
            models: The directory of models.
            config: The server's settings.
            places: The workers' places.
        """
        self._places = places
        self._together = Together()
        self._scraping = Scraping(self._ask)
        self._counting = Counting(self._ask_others)
        self._wants: Wants | None = None
        self._unloaded: set[str] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._is_over = False
        self.restarts = 0
        self.was_ready = False
        self._source: DirectorySource | None = None
        if models is not None or config.models:
            clock = LoopClock()
            clock.bind(asyncio.get_running_loop())
            threads = LoaderThreads(clock, lambda: False)  # it answers nobody that could wait
            self._source = DirectorySource(models, self._want, clock, threads, config)

    def start(self) -> None:
        """Begin to look at the disk, the only one of all processes to do so."""
        if self._source is None:
            self._want({}, {})
        else:
            self._source.start()

    def stop(self) -> None:
        """Look no more, and leave what all say as it is: a worker that ends first makes no other unready."""
        self._is_over = True
        if self._telling is not None:
            self._telling.cancel()
        if self._source is not None:
            self._source.stop()

    @property
    def has_tried(self) -> bool:
        """Whether each version that is wanted is ready in all workers, or has failed in one."""
        if self._wants is None or not self._wants.models.keys() <= self._together.view.keys():
            return False
        wanted = (one for told in self._together.view.values() for one in told.versions if one.wanted)
        return all(one.state in (State.READY, State.FAILED) for one in wanted)

    @property
    def statuses(self) -> dict[str, Sequence[VersionStatus]]:
        """What the server says of the versions of all models."""
        return {name: told.versions for name, told in self._together.view.items()}

    # --- workers come and go ---

    def is_ready(self, place: Place) -> bool:
        """Whether a worker's models have been tried, and one answers."""
        return self._together.is_ready(place.number)

    def began(self, place: Place) -> None:
        """A process has begun, and is told what the others know."""
        self._together.begin(place.number)
        if self._wants is not None:
            place.send(self._wants)
        place.send(self._together.whole())
        for model in sorted(self._unloaded):
            place.send(Act(model, unload=True))

    def ended(self, place: Place) -> None:
        """A process has ended."""
        self._together.end(place.number)
        self._scraping.end(place.number)
        self._counting.pass_over(place.number)
        self.changed()

    def silent(self, place: Place) -> None:
        """A worker does not answer."""
        self._scraping.pass_over(place.number)
        self._counting.pass_over(place.number)
        self.changed()

    def changed(self) -> None:
        """What all workers can may be something else now: one has begun to serve, or answers again."""
        if self._telling is None and not self._is_over:
            self._telling = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        standings = {
            place.number: standing
            for place in self._places
            if (standing := place.standing(ready=self._together.is_ready(place.number))) is not None
        }
        view = self._together.changes(standings)
        self.was_ready = self.was_ready or self._together.ready
        if view is not None:
            for place in self._places:
                place.send(view)

    # --- messages ---

    def told(self, place: Place, message: Message) -> None:
        """A worker tells something."""
        if isinstance(message, States):
            self._together.take(place.number, message)
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
        for place in self._places:
            if place is not asked:
                place.send(message)

    def _want(self, models: Mapping[str, Wanted], unusable: Mapping[str, str]) -> None:
        self._wants = wanted.told(models, unusable, len(self._places))
        self._unloaded &= models.keys()
        self._scraping.forget_but(
            {(name, str(number)) for name, one in models.items() for number in one.versions}
        )
        for place in self._places:
            place.send(self._wants)

    # --- what workers have counted ---

    async def look_after(self) -> None:
        """Have the metrics now and then, for what a killed worker has counted."""
        await self._scraping.round_if_due()

    def _ask(self, message: Scrape) -> list[int]:
        asked = [place for place in self._places if place.answers]
        for place in asked:
            place.send(message)
        return [place.number for place in asked]

    async def _scrape(self, place: Place, message: Scrape) -> None:
        await self._scraping.round()
        added = own_families(
            self._together.view,
            ready=self._together.ready,
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
