"""What a worker says of the load: its own to the supervisor, that of all workers to balancers."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from headrace.batching.capacity import LoadReport
from headrace.config import ServerConfig
from headrace.serving.engine import Engine
from headrace.workers.messages import Act, Beat, Message
from headrace.workers.shared_state import SharedState
from headrace.workers.worker_processes import Place
from headrace.workers.worker_service import WorkerService
from tests.models import Doubling

WHOLE = LoadReport(0.9, 300.0, 1.0)
PATIENCE_SECONDS = 120.0


def test_a_worker_reports_the_load_of_all_workers() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            service, reports = WorkerService(engine, lambda message: None), list[LoadReport]()
            service.report_load(reports.append)
            assert service.beat(Beat()) == Beat(None)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (own := service.beat(Beat(WHOLE)).report) is None:  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(0.05)
            assert own.requests_per_second == 0.0
            assert set(reports) == {WHOLE}

    asyncio.run(scenario())


def test_a_worker_without_load_reports_sends_no_load() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            assert WorkerService(engine, lambda message: None).beat(Beat(WHOLE)) == Beat(None)

    asyncio.run(scenario())


def test_a_worker_that_has_ended_has_no_load() -> None:
    place = Place(0, ())
    place.report = WHOLE
    place.leave()
    assert place.report is None


class Reached(Place):
    """A place whose worker gets its messages when it is told to."""

    def __init__(self, number: int, engine: Engine, supervisor: deque[tuple[Reached, Act]]) -> None:
        super().__init__(number, ())
        self.engine = engine
        self.service = WorkerService(engine, lambda message: supervisor.append((self, act(message))))
        self._arriving: deque[Act] = deque()

    def send(self, message: Message) -> None:
        self._arriving.append(act(message))

    def hear(self) -> None:
        while self._arriving:
            self.service.act(self._arriving.popleft())

    @property
    def unloaded(self) -> bool:
        return not any(one.wanted for one in self.engine.manager.status("m"))


def act(message: Message) -> Act:
    assert isinstance(message, Act)
    return message


@pytest.mark.parametrize("unloads_last", [True, False])
def test_acts_at_the_same_time_leave_all_workers_alike(unloads_last: bool) -> None:
    """One worker unloads, another one loads; the act that reaches the supervisor last holds in all three."""

    async def scenario() -> None:
        config = ServerConfig(admin=True)
        engines = [Engine(objects={"m": Doubling()}, config=config) for _ in range(3)]
        async with engines[0], engines[1], engines[2]:
            supervisor: deque[tuple[Reached, Act]] = deque()
            places = [Reached(number, engine, supervisor) for number, engine in enumerate(engines)]
            shared = SharedState(None, config, places)
            places[0].service.unload("m")
            places[1].service.reload("m")
            if unloads_last:
                supervisor.reverse()
            while supervisor:
                shared.told(*supervisor.popleft())
            for place in places:
                place.hear()
            assert [place.unloaded for place in places] == [unloads_last] * 3
            places[0].service.reload("m")
            shared.told(*supervisor.popleft())
            for place in places:
                place.hear()
            assert [place.unloaded for place in places] == [False] * 3

    asyncio.run(scenario())


def test_an_own_act_is_not_repeated_when_it_returns() -> None:
    async def scenario() -> None:
        config = ServerConfig(admin=True)
        async with Engine(objects={"m": Doubling()}, config=config) as engine:
            supervisor: deque[tuple[Reached, Act]] = deque()
            place = Reached(0, engine, supervisor)
            shared = SharedState(None, config, [place])
            place.service.unload("m")
            place.service.reload("m")
            shared.told(*supervisor.popleft())
            place.hear()
            assert not place.unloaded, "it was loaded since"

    asyncio.run(scenario())
