"""What is known of the last seconds: error budgets over their window, and the load of an engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from weakref import ref

import msgspec
import pytest

from headrace.base.errors import HeadraceError
from headrace.batching.capacity import LoadReport
from headrace.batching.statistics import ObjectiveCounts
from headrace.config import ObjectivePolicy, ServerConfig
from headrace.frontends.metrics.recent_load import Budget, ObjectiveHistory, Sampler
from headrace.serving.engine import Engine
from tests.model_directories import affine, write
from tests.models import Doubling
from tests.waiting import until_in_loop

POLICY = ObjectivePolicy(latency_seconds=0.01, target=0.99, window_seconds=600.0)
PATIENCE_SECONDS = 30.0
UNTOUCHED = Budget(remaining=1.0, burn_rate=0.0)


@pytest.mark.parametrize(
    ("events", "now", "remaining", "burn_rate"),
    [
        ([], 0.0, 1.0, 0.0),
        ([(0.0, 1000, 0)], 1.0, 1.0, 0.0),
        ([(0.0, 990, 10)], 1.0, 0.0, 1.0),  # exactly what is allowed
        ([(0.0, 995, 5)], 1.0, 0.5, 0.5),
        ([(0.0, 0, 10)], 1.0, -99.0, 100.0),  # nothing works
        ([(0.0, 0, 10), (100.0, 990, 0)], 100.0, 0.0, 0.0),  # it has stopped to burn
        ([(0.0, 990, 0), (580.0, 0, 10)], 590.0, 0.0, 100.0),  # it burns now
        ([(0.0, 0, 10)], 700.0, 1.0, 0.0),  # longer ago than the window
        ([(0.0, 0, 10)], 1e9, 1.0, 0.0),
    ],
)
def test_a_budget_is_what_its_window_holds(
    events: list[tuple[float, int, int]], now: float, remaining: float, burn_rate: float
) -> None:
    history = ObjectiveHistory(POLICY, 0.0)
    for at, kept, late in events:
        history.count(ObjectiveCounts(kept=kept, late=late), at)
    history.count(ObjectiveCounts(), now)
    assert history.budget() == Budget(pytest.approx(remaining), pytest.approx(burn_rate))


def test_an_engine_that_is_asked_has_a_load_and_a_budget(tmp_path: Path) -> None:
    """The objective is a nanosecond, which no request keeps."""
    write(tmp_path, "m", 1, affine(2.0, 1.0), "[objective]\nlatency_seconds = 1e-9\ntarget = 0.5\n")

    async def scenario() -> None:
        async with Engine(tmp_path, config=ServerConfig()) as engine:
            sampler = Sampler(engine)
            assert (sampler.load, dict(sampler.budgets())) == (None, {})
            sampler.watch()
            asked = 0

            async def ask() -> None:
                nonlocal asked
                while dict(sampler.budgets()).get("m", UNTOUCHED).remaining == 1.0:
                    await engine.predict("m", {"x": [1.0]})
                    asked += 1
                    await asyncio.sleep(0.001)

            await asyncio.wait_for(ask(), PATIENCE_SECONDS)
            assert asked
            assert dict(sampler.budgets())["m"] == Budget(pytest.approx(-1.0), pytest.approx(2.0))
            assert sampler.load is not None
            assert sampler.load > 0.0
            assert 0.0 < sampler.model_loads["m"] < 1.0
            before = sampler.load
            await until_in_loop(lambda: sampler.load is not None and sampler.load < before, every=0.05)

    asyncio.run(scenario())


def test_nobody_who_looks_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.frontends.metrics.recent_load._WATCHED_SECONDS", 0.5)

    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            sampler = Sampler(engine)
            assert sampler._timer is None
            sampler.watch()
            assert sampler._timer is not None
            await until_in_loop(lambda: sampler._timer is None, every=0.05)
            assert sampler.load is None
            monkeypatch.undo()  # two readings make a load, a second apart

            def is_known() -> bool:
                sampler.watch()
                return sampler.load is not None

            await until_in_loop(is_known, every=0.05)

    asyncio.run(scenario())


def test_many_models_are_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices of no length, each model has one of its own, and the loop goes on between them."""
    monkeypatch.setattr("headrace.frontends.metrics.recent_load._SLICE_SECONDS", 0.0)

    async def scenario() -> None:
        async with Engine.from_objects({f"m{number}": Doubling() for number in range(20)}) as engine:
            sampler = Sampler(engine)
            sampler.watch()
            assert len(sampler._flows) < 2
            await until_in_loop(lambda: sampler.load is not None)
            assert len(sampler.model_loads) == 20

    asyncio.run(scenario())


def test_reports_are_made_though_nobody_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.frontends.metrics.recent_load._WATCHED_SECONDS", -1.0)

    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            sampler, reports = Sampler(engine), list[LoadReport]()
            sampler.report_to(reports.append)
            await until_in_loop(lambda: len(reports) == 2)
            assert reports[1] == LoadReport(pytest.approx(sampler.load), 0.0, 0.0)

    asyncio.run(scenario())


def test_a_report_has_the_rates_of_requests_and_of_errors() -> None:
    """Half of the requests fail, those with negative numbers."""

    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            sampler, reports = Sampler(engine), list[LoadReport]()
            sampler.report_to(reports.append)

            async def ask() -> None:
                while not reports or not reports[-1].requests_per_second:
                    for value in (1.0, -1.0):
                        with suppress(HeadraceError):
                            await engine.predict("m", {"x": [[value, value]]})
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(ask(), PATIENCE_SECONDS)
            assert reports[-1].load > 0.0
            half = reports[-1].requests_per_second / 2
            assert reports[-1].errors_per_second == pytest.approx(half, rel=0.2)

    asyncio.run(scenario())


def read_now(sampler: Sampler) -> None:
    """Read all counters once more."""
    for _ in sampler._sample():
        pass


def test_a_version_that_takes_over_goes_on_from_the_rates_of_the_one_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where nothing takes over, nothing is reported."""
    monkeypatch.setattr("headrace.frontends.metrics.recent_load._SLICE_SECONDS", PATIENCE_SECONDS)
    write(tmp_path, "m", 1, affine(2.0, 1.0))

    async def scenario() -> None:
        async with Engine(tmp_path, config=ServerConfig(poll_seconds=0.05, admin=True)) as engine:
            sampler, reports = Sampler(engine), list[LoadReport]()
            sampler.report_to(reports.append)
            sampler._timer.cancel()  # type: ignore[union-attr]  # the test says when counters are read
            for _ in range(20):
                await engine.predict("m", {"x": [1.0]})
            await asyncio.sleep(0.01)
            read_now(sampler)
            before = reports[-1].requests_per_second
            assert before > 0.0
            write(tmp_path, "m", 2, affine(2.0, 1.0))
            await until_in_loop(lambda: [one.version for one in engine.manager.all_loaded()] == [2])
            read_now(sampler)
            assert reports[-1].requests_per_second == before
            engine.manager.unload("m")
            await until_in_loop(lambda: not engine.manager.all_loaded())
            read_now(sampler)
            assert (reports[-1].requests_per_second, reports[-1].load) == (0.0, pytest.approx(0.0, abs=0.5))
            assert sampler._flows == {}

    asyncio.run(scenario())


def test_the_objective_of_a_model_is_that_of_its_default_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both versions serve; the other one has an objective of its own, which changes nothing."""
    monkeypatch.setattr("headrace.frontends.metrics.recent_load._SLICE_SECONDS", PATIENCE_SECONDS)
    objective = "[objective]\nlatency_seconds = {}\ntarget = 0.5\n"
    write(tmp_path, "m", 1, affine(2.0, 1.0), objective.format("1e-9"))
    write(tmp_path, "n", 1, affine(2.0, 1.0))

    async def scenario() -> None:
        async with Engine(tmp_path, config=ServerConfig(poll_seconds=0.05)) as engine:
            sampler = Sampler(engine)
            sampler.watch()
            sampler._timer.cancel()  # type: ignore[union-attr]
            await engine.predict("m", {"x": [1.0]})
            read_now(sampler)
            budgets = dict(sampler.budgets())
            assert budgets["m"].remaining < 1.0
            loaded = engine.manager.get("m", 1)
            flow = sampler._flows[ref(loaded)]
            other = SimpleNamespace(
                name="m", version=7, config=loaded.config, all_statistics=loaded.all_statistics
            )
            sampler._count_objective(other, flow, 0.0)  # type: ignore[arg-type]
            other.config = msgspec.structs.replace(loaded.config, objective=POLICY)
            sampler._count_objective(other, flow, 0.0)  # type: ignore[arg-type]
            assert dict(sampler.budgets()) == budgets
            rmtree(tmp_path / "m")
            await until_in_loop(lambda: not engine.manager.knows("m"))
            read_now(sampler)
            assert dict(sampler.budgets()) == {}

    asyncio.run(scenario())
