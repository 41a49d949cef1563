"""The engine in process: from objects and directories, asynchronous and blocking."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace import example
from headrace.base.errors import (
    ConfigError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    ModelError,
    NotFound,
    Unavailable,
)
from headrace.batching.request import Answer, Settlement
from headrace.config import BatchingPolicy
from headrace.model.servable import signature_named
from headrace.serving.engine import Engine, ModelSpec
from headrace.telemetry.outcomes import Outcome
from tests.calling import Gated
from tests.models import Doubling
from tests.waiting import until, until_in_loop

ROW = np.array([[1.0, 2.0]], np.float32)


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))  # type: ignore[arg-type]


def test_concurrent_callers_share_batches_and_get_their_own_rows() -> None:
    async def scenario() -> None:
        model = Doubling()
        async with Engine.from_objects({"m": model}) as engine:
            asked = [np.full((1 + n % 3, 2), n, np.float32) for n in range(40)]
            model.batches.clear()
            answers = await asyncio.gather(*(engine.predict("m", {"x": x}) for x in asked))
            for x, answer in zip(asked, answers, strict=True):
                np.testing.assert_array_equal(answer["y"], 2 * x)
            assert len(model.batches) < len(asked)
        assert model.closed.is_set()

    run(scenario())


def test_a_timeout_that_is_no_number_is_refused() -> None:
    """It never passed: a model that hangs kept such a call for ever, with a default, too."""

    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            with pytest.raises(
                InvalidRequest, match="timeout_seconds: expected a number of seconds, got nan"
            ):
                await engine.predict("m", {"x": ROW}, timeout_seconds=math.nan)

    run(scenario())
    with Engine.in_thread(objects={"m": Doubling()}) as engine, pytest.raises(InvalidRequest, match="nan"):
        engine.predict_blocking("m", {"x": ROW}, timeout_seconds=math.nan)
    with (
        Engine.in_thread(objects={"m": Doubling()}) as engine,
        pytest.raises(InvalidRequest, match="timeout_seconds: expected a number of seconds, got '1'"),
    ):
        engine.predict_blocking("m", {"x": ROW}, timeout_seconds="1")  # type: ignore[arg-type]


def test_the_error_of_an_engine_that_was_not_started_gives_the_ways_to_start_it() -> None:
    engine = Engine.from_objects({"m": Doubling()})
    with pytest.raises(FailedPrecondition, match=r"not been started.*async with.*in_thread"):
        engine.predict_blocking("m", {"x": ROW})
    with pytest.raises(FailedPrecondition, match="not been started"):
        run(engine.predict("m", {"x": ROW}))


def test_a_directory_of_models_is_served_from_the_moment_the_engine_is_entered(tmp_path: Path) -> None:
    example.write(tmp_path)

    async def scenario() -> None:
        async with Engine(tmp_path) as engine:
            answer = await engine.predict("half_plus_two", {"x": [1.0, 2.0]})
            assert answer["y"].tolist() == [2.5, 3.0]
            by_version = await engine.predict(ModelSpec("half_plus_two", version=1), {"x": [4.0]})
            assert by_version["y"].tolist() == [4.0]

    run(scenario())


def test_a_model_in_a_linked_place_is_served_and_one_that_others_may_write_is_not(tmp_path: Path) -> None:
    served = tmp_path / "models"
    for place in (tmp_path / "releases", served):
        example.write(place)
    (served / "linked").symlink_to(tmp_path / "releases/half_plus_two")
    (served / "half_plus_two/1/model.onnx").chmod(0o646)

    async def scenario() -> None:
        async with Engine(served) as engine:
            answer = await engine.predict("linked", {"x": [1.0]})
            assert answer["y"].tolist() == [2.5]
            with pytest.raises(FailedPrecondition, match=r"others may write model\.onnx \(mode 0646"):
                await engine.predict("half_plus_two", {"x": [1.0]})

    run(scenario())


def test_settings_in_a_version_directory_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    example.write(tmp_path)
    (tmp_path / "half_plus_two" / "1" / "headrace.toml").write_text("[batching]\n")

    async def scenario() -> None:
        async with Engine(tmp_path):
            pass

    with caplog.at_level("WARNING"):
        run(scenario())
    assert "half_plus_two version 1: the headrace.toml in the version's directory is not read" in caplog.text
    assert "move it to half_plus_two/headrace.toml" in caplog.text


def test_wrong_requests_are_refused_with_the_name_of_what_is_wrong() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            with pytest.raises(NotFound, match="other"):
                await engine.predict("other", {"x": ROW})
            with pytest.raises(NotFound, match="99"):
                await engine.predict(ModelSpec("m", version=99), {"x": ROW})
            with pytest.raises(NotFound, match="canary"):
                await engine.predict(ModelSpec("m", label="canary"), {"x": ROW})
            with pytest.raises(NotFound, match="nothing"):
                await engine.predict(ModelSpec("m", signature="nothing"), {"x": ROW})
            with pytest.raises(InvalidRequest, match="'z'"):
                await engine.predict("m", {"x": ROW}, outputs=["z"])
            with pytest.raises(InvalidRequest, match="x: expected"):
                await engine.predict("m", {"x": [[1.0]]})
            with pytest.raises(ModelError, match="ValueError"):
                await engine.predict("m", {"x": -ROW})
            assert (await engine.predict("m", {"x": ROW}, outputs=["y"]))["y"].tolist() == [[2.0, 4.0]]

    run(scenario())


def test_a_deadline_that_passes_while_the_model_runs_is_answered_without_it() -> None:
    async def scenario() -> None:
        held, ended = threading.Event(), list[bool]()
        held.set()
        policy = BatchingPolicy(instances=1, inline_seconds=0)
        model = Doubling(before=lambda: ended.append(held.wait(25)))
        async with Engine.from_objects({"m": model}, batching=policy) as engine:
            held.clear()
            ended.clear()
            with pytest.raises(DeadlineExceeded):
                await engine.predict("m", {"x": ROW}, timeout_seconds=0.05)
            assert not ended, "the model still runs"
            held.set()
            assert (await engine.predict("m", {"x": ROW}))["y"].tolist() == [[2.0, 4.0]]

    run(scenario())


def test_the_cheapest_form_answers_by_callback_exactly_once() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            loaded = engine.loaded("m")
            checked = signature_named(loaded.signatures, "").check({"x": ROW})
            settlements: list[Settlement] = []
            answered = asyncio.Event()

            def respond(settlement: Settlement) -> None:
                settlements.append(settlement)
                answered.set()

            engine.submit(loaded, checked, respond)
            await answered.wait()
            (settlement,) = settlements
            assert isinstance(settlement, Answer)
            assert settlement.tensor("y").tolist() == [[2.0, 4.0]]

    run(scenario())


def test_threads_call_the_blocking_form_and_share_batches() -> None:
    model = Doubling()
    with Engine.in_thread(objects={"m": model}) as engine:
        answers: dict[int, object] = {}

        def ask(number: int) -> None:
            answers[number] = engine.predict_blocking("m", {"x": ROW * number})["y"].tolist()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert answers == {number: [[2.0 * number, 4.0 * number]] for number in range(16)}
    assert model.closed.is_set()


def test_the_blocking_form_refuses_to_block_the_serving_thread() -> None:
    async def scenario() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            with pytest.raises(FailedPrecondition, match="await"):
                engine.predict_blocking("m", {"x": ROW})

    run(scenario())


def test_a_load_in_progress_ends_after_the_engine_has_closed() -> None:
    """Its threads waited for ever for a callback, as the loop never ran again."""

    async def scenario() -> None:
        model = Gated()
        model.shut = True
        engine = Engine.from_objects({"slow": model})
        await engine.start(wait=False)
        await until_in_loop(lambda: model.entered.acquire(blocking=False))
        await engine.close()
        model.open()
        until(model.closed.is_set)  # the loop stands still meanwhile
        until(lambda: not any(one.name.startswith("slow/1/") for one in threading.enumerate()))

    run(scenario())


def test_a_closed_engine_says_that_it_is_stopping() -> None:
    async def scenario() -> None:
        engine = Engine.from_objects({"m": Doubling()})
        await engine.start()
        await engine.close()
        with pytest.raises(Unavailable, match="stopping"):
            await engine.predict("m", {"x": ROW})

    run(scenario())


def test_nothing_to_serve_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="nothing to serve"):
        Engine()


def test_a_directory_that_is_not_there_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="not a directory"):
            await Engine(tmp_path / "missing").start()

    run(scenario())


def test_a_base_exception_of_a_model_fails_its_own_request_only() -> None:
    def interrupt() -> None:
        if armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    async def scenario() -> None:
        policy = BatchingPolicy(inline_seconds=0, instances=1)
        async with Engine.from_objects({"m": Doubling(before=interrupt)}, batching=policy) as engine:
            armed.set()
            with pytest.raises(ModelError, match="KeyboardInterrupt"):
                await engine.predict("m", {"x": ROW})
            assert (await engine.predict("m", {"x": ROW}))["y"].tolist() == [[2.0, 4.0]]

    armed = threading.Event()
    run(scenario())


def test_a_lone_task_is_answered_at_once_and_gives_way_to_others_all_the_same() -> None:
    async def scenario() -> None:
        policy = BatchingPolicy(inline_seconds=1.0)
        async with Engine.from_objects({"m": Doubling()}, batching=policy) as engine:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for _ in range(100):
                assert (await engine.predict("m", {"x": ROW}))["y"].tolist() == [[2.0, 4.0]]
            assert 10 <= turns < 100
            with pytest.raises(ModelError):
                await engine.predict("m", {"x": -ROW})
            counting.cancel()
            statistics = engine.loaded("m").statistics
            assert (statistics.requests, statistics.batches, statistics.failures) == (100, 100, 1)

    run(scenario())


def test_a_call_answered_at_once_has_a_complete_outcome() -> None:
    async def scenario() -> None:
        ended: list[Outcome] = []
        policy = BatchingPolicy(inline_seconds=1.0)
        async with Engine.from_objects({"m": Doubling()}, batching=policy) as engine:
            engine.outcomes.observe(ended.append)
            for _ in range(20):
                await engine.predict("m", {"x": ROW})
            assert {one.source for one in ended} == {engine.loaded("m").origin}
            assert all(one.timings is not None and one.arrived <= one.timings.finished for one in ended)
        assert len(ended) == 20

    run(scenario())


def test_after_a_lone_task_many_share_batches_but_for_the_first_call() -> None:
    async def scenario() -> None:
        model = Doubling()
        async with Engine.from_objects({"m": model}, batching=BatchingPolicy(inline_seconds=1.0)) as engine:
            for _ in range(20):
                await engine.predict("m", {"x": ROW})
            model.batches.clear()
            for _ in range(3):
                await asyncio.gather(*(engine.predict("m", {"x": ROW}) for _ in range(30)))
            assert model.batches == [1, 29, 30, 30]

    run(scenario())


def test_objects_are_not_loaded_in_processes() -> None:
    policy = BatchingPolicy(instance_processes=2)
    with pytest.raises(
        ConfigError, match=r"batching\.instance_processes: expected nothing for objects, .* 2"
    ):
        Engine.from_objects({"m": Doubling()}, batching=policy)
