"""What all workers know together."""

from __future__ import annotations

import asyncio
import socket

from headrace.config import ServerConfig
from headrace.workers.channel import Channel
from headrace.workers.commons import Commons
from headrace.workers.messages import Message, States, View
from headrace.workers.place import Place


class Told:
    """The worker's end of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.views: asyncio.Queue[View] = asyncio.Queue()

    async def begin(self, commons: Commons) -> None:
        ours, theirs = socket.socketpair()
        self.place.channel, self.channel = Channel(), Channel()
        await self.place.channel.open(ours, lambda message: None)
        await self.channel.open(theirs, self._take)
        self.place.serving, self.place.starts = True, 1
        commons.began(self.place)

    def _take(self, message: Message) -> None:
        if isinstance(message, View):
            self.views.put_nowait(message)

    async def ready(self) -> None:
        async with asyncio.timeout(30):
            while not (await self.views.get()).ready:
                pass

    def end(self) -> None:
        self.place.leave()
        self.channel.close()


async def one_ends_first() -> list[Told]:
    places = [Place(0, ()), Place(1, ())]
    commons = Commons(None, ServerConfig(), places)
    workers = [Told(place) for place in places]
    for worker in workers:
        await worker.begin(commons)
    for place in places:
        commons.told(place, States({}, ready=True))
    for worker in workers:
        await worker.ready()
    commons.told(places[0], States({}, ready=False))
    commons.stop()  # what was about to be told is not
    commons.told(places[0], States({}, ready=False))
    await asyncio.sleep(0.1)  # twenty times what is gathered for
    for worker in workers:
        worker.end()
    return workers


def test_a_worker_that_ends_first_makes_no_other_unready_at_a_stop() -> None:
    _, goes_on = asyncio.run(one_ends_first())
    assert goes_on.views.empty()
