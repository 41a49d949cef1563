"""What all workers know together."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

from headrace.config import ServerConfig
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.workers.messages import Channel, Message, ModelState, Scrape, Scraped, States, View
from headrace.workers.shared_state import SharedState
from headrace.workers.worker_processes import Place


class Told:
    """The worker's end of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.views: asyncio.Queue[View] = asyncio.Queue()
        self.answers: asyncio.Queue[Scraped] = asyncio.Queue()
        self.text = ""

    async def begin(self, shared: SharedState) -> None:
        ours, theirs = socket.socketpair()
        self.place.channel, self.channel = Channel(), Channel()
        await self.place.channel.open(ours, partial(shared.told, self.place))
        await self.channel.open(theirs, self._take)
        self.place.serving, self.place.starts = True, 1
        shared.began(self.place)

    def _take(self, message: Message) -> None:
        if isinstance(message, View):
            self.views.put_nowait(message)
        elif isinstance(message, Scrape):
            self.channel.send(Scraped(message.number, self.text.encode()))
        elif isinstance(message, Scraped):
            self.answers.put_nowait(message)

    def say(self, *versions: VersionStatus) -> None:
        told = ModelState(versions, answers=True, problems=())
        self.channel.send(States({"m": told}, ready=True))

    async def sees(self, *versions: int) -> None:
        """Wait until these are the versions of m that the workers have."""
        async with asyncio.timeout(30):
            while True:
                told = (await self.views.get()).models.get("m")
                if told is not None and tuple(one.version for one in told.versions) == versions:
                    return

    async def total(self) -> str:
        """Ask for the metrics of the server; the value of the only one that is of a worker."""
        self.channel.send(Scrape(7))
        async with asyncio.timeout(30):
            text = (await self.answers.get()).text.decode()
        return next(line for line in text.splitlines() if line.startswith("requests_total")).split()[-1]

    async def ready(self) -> None:
        async with asyncio.timeout(30):
            while not (await self.views.get()).ready:
                pass

    def end(self) -> None:
        self.place.leave()
        self.channel.close()


async def one_ends_first() -> list[Told]:
    places = [Place(0, ()), Place(1, ())]
    shared = SharedState(None, ServerConfig(), places)
    workers = [Told(place) for place in places]
    for worker in workers:
        await worker.begin(shared)
    for place in places:
        shared.told(place, States({}, ready=True))
    for worker in workers:
        await worker.ready()
    shared.told(places[0], States({}, ready=False))
    shared.stop()  # what was about to be told is not
    shared.told(places[0], States({}, ready=False))
    await asyncio.sleep(0.1)  # twenty times what is gathered for
    for worker in workers:
        worker.end()
    return workers


def test_a_worker_that_ends_first_makes_no_other_unready_at_a_stop() -> None:
    _, goes_on = asyncio.run(one_ends_first())
    assert goes_on.views.empty()


def status(version: int, *, wanted: bool = True) -> VersionStatus:
    return VersionStatus(version, State.READY, wanted)


def counted(requests: int) -> str:
    series = f'requests_total{{model="m",version="1"}} {requests}'
    return f"# HELP requests_total It.\n# TYPE requests_total counter\n{series}\n"


async def one_dies_and_a_version_follows() -> None:
    places = [Place(0, ()), Place(1, ())]
    shared = SharedState(None, ServerConfig(), places)
    dies, lives = workers = [Told(place) for place in places]
    shared._want({"m": Wanted({1: Path("m/1")})}, {})
    for worker, requests in ((dies, 4), (lives, 2)):
        await worker.begin(shared)
        worker.text = counted(requests)
        worker.say(status(1))
    await lives.sees(1)
    assert await lives.total() == "6"
    dies.end()
    shared.ended(places[0])
    assert await lives.total() == "6"
    shared._want({"m": Wanted({2: Path("m/2")})}, {})
    lives.say(status(2), status(1, wanted=False))
    await lives.sees(2, 1)
    assert await lives.total() == "6", "version 1 still answers"
    lives.say(status(2))
    await lives.sees(2)
    assert await lives.total() == "2", "the dead worker's part is forgotten with the version"
    shared.stop()
    for worker in workers:
        worker.end()


def test_a_dead_workers_counts_are_kept_until_no_worker_has_the_version() -> None:
    asyncio.run(one_dies_and_a_version_follows())
