"""What a worker says of the load: its own to the supervisor, that of all workers to balancers."""

from __future__ import annotations

import asyncio

from headrace.batching.capacity import LoadReport
from headrace.engine import Engine
from headrace.workers.messages import Beat
from headrace.workers.place import Place
from headrace.workers.service import WorkerService
from tests.models import Doubling

WHOLE = LoadReport(0.9, 300.0, 1.0)
PATIENCE_SECONDS = 30.0


def test_a_worker_reports_what_the_supervisor_says_of_all() -> None:
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


def test_a_worker_that_is_not_to_report_does_not() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            assert WorkerService(engine, lambda message: None).beat(Beat(WHOLE)) == Beat(None)

    asyncio.run(scenario())


def test_a_worker_that_has_ended_has_no_load() -> None:
    place = Place(0, ())
    place.report = WHOLE
    place.leave()
    assert place.report is None
