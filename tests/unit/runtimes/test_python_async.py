"""Python models whose ``predict`` is a coroutine: they wait together, call others, and end with deadlines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    LoadError,
    ModelError,
    Overloaded,
)
from headrace.base.tensors import Tensors
from headrace.config import ServerConfig
from headrace.lifecycle.version_states import State
from headrace.model.streaming_servable import FirstPart, is_streaming
from headrace.runtimes.registry import RuntimeOptions, load
from headrace.serving.engine import Engine
from tests.model_directories import affine, write
from tests.waiting import seconds_left

HEAD = """
import asyncio
import threading

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]
    {declared}

    def load(self, path, context):
        self.path, self.context = path, context

    async def predict(self, inputs):
"""
CALL = "        return {{'y': (await self.context.predict_async({name!r}, {{'x': inputs['x']}}))['y']}}\n"
EXITING_LOAD = "async def load(self, path, context):\n        raise SystemExit('no licence')"
SINGLE = "[batching]\nmax_batch_rows = 1\n[warm_up]\nenabled = false\n"
X = {"x": [3.0]}


def publish(models: Path, name: str, body: str, declared: str = "", settings: str = SINGLE) -> None:
    (models / name / "1").mkdir(parents=True)
    (models / name / "1/model.py").write_text(HEAD.format(declared=declared) + body)
    (models / name / "headrace.toml").write_text(settings)


def engine(models: Path) -> Engine:
    return Engine(models, config=ServerConfig(allow_code=True))


def test_it_is_loaded_called_and_closed_in_a_loop_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        """
import asyncio
import threading

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    async def load(self, path, context):
        self.path, self.loop = path, asyncio.get_running_loop()

    async def predict(self, inputs):
        assert asyncio.get_running_loop() is self.loop
        return {"y": inputs["x"] * 2}

    async def close(self):
        (self.path / "closed").write_text(threading.current_thread().name)
"""
    )
    servable = load(tmp_path, RuntimeOptions(allow_code=True))
    assert servable.predict({"x": np.float32([1.5])})["y"].tolist() == [3.0]
    servable.close()
    assert (tmp_path / "closed").read_text() == "model loop"


def test_calls_wait_together_in_one_thread(tmp_path: Path) -> None:
    together = 20
    publish(
        tmp_path,
        "m",
        f"""
        self.threads = getattr(self, "threads", [])
        self.threads.append(threading.get_ident())
        self.all_inside = getattr(self, "all_inside", None) or asyncio.Event()
        if len(self.threads) == {together}:
            self.all_inside.set()
        await self.all_inside.wait()
        return {{"y": inputs["x"] + len(set(self.threads))}}
""",
    )

    async def scenario() -> list[list[float]]:
        async with engine(tmp_path) as serving:
            asked = [serving.predict("m", {"x": [0.0]}) for _ in range(together)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), seconds_left())
            return [answer["y"].tolist() for answer in answers]

    assert asyncio.run(scenario()) == [[1.0]] * together


def test_it_calls_another_model_whose_batches_stay_intact(tmp_path: Path) -> None:
    write(tmp_path, "inner", 1, affine(2.0, 1.0))
    publish(tmp_path, "outer", CALL.format(name="inner"), "calls = ('inner',)")

    async def scenario() -> tuple[list[list[float]], int]:
        async with engine(tmp_path) as serving:
            inner = serving.loaded("inner").statistics
            before = inner.batches
            asked = [serving.predict("outer", {"x": [float(x)]}) for x in range(40)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), seconds_left())
            return [answer["y"].tolist() for answer in answers], inner.batches - before

    answers, batches = asyncio.run(scenario())
    assert answers == [[2.0 * x + 1.0] for x in range(40)]
    assert batches < 40


def test_a_deadline_is_passed_on_and_cancels_what_waits(tmp_path: Path) -> None:
    note = "            (self.path / 'cancelled').touch()\n"
    publish(
        tmp_path,
        "inner",
        f"        try:\n            await asyncio.Event().wait()\n        finally:\n{note}",
    )
    publish(tmp_path, "outer", CALL.format(name="inner"), "calls = ('inner',)")
    sync = CALL.format(name="inner").replace("await ", "").replace("predict_async", "predict")
    publish(tmp_path, "sync", sync)
    path = tmp_path / "sync/1/model.py"
    path.write_text(path.read_text().replace("async def", "def"))

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            for model in ("outer", "sync"):
                with pytest.raises(DeadlineExceeded):
                    await serving.predict(model, X, timeout_seconds=0.05)
                # Closing waits for the calls that still run, so they end only if they were cancelled.

    asyncio.run(asyncio.wait_for(scenario(), seconds_left()))
    assert (tmp_path / "inner/1/cancelled").exists()


def test_a_failing_call_fails_alone(tmp_path: Path) -> None:
    body = """
        await asyncio.sleep(0)
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"]}
"""
    publish(tmp_path, "m", body, settings="[batching]\nmax_wait_seconds = 0.05\n[warm_up]\nenabled = false\n")

    async def scenario() -> list[object]:
        async with engine(tmp_path) as serving:
            asked = [serving.predict("m", {"x": [x]}) for x in (1.0, -1.0, 2.0)]
            return await asyncio.gather(*asked, return_exceptions=True)

    first, failed, last = asyncio.run(scenario())
    assert isinstance(failed, ModelError)
    assert "ValueError" in failed.message
    assert first["y"].tolist() == [1.0]  # type: ignore[index]
    assert last["y"].tolist() == [2.0]  # type: ignore[index]


def test_the_neighbours_of_a_failing_call_are_repeated_together(tmp_path: Path) -> None:
    body = """
        self.inside = getattr(self, "inside", 0) + 1
        self.most = max(self.inside, getattr(self, "most", 0))
        try:
            await asyncio.sleep(0)
            if (inputs["x"] < 0).any():
                raise ValueError("negative")
            return {"y": inputs["x"] * 0 + self.most}
        finally:
            self.inside -= 1
"""
    batching = "[batching]\nmax_wait_seconds = 0.05\ninstances = 3\n"
    publish(tmp_path, "m", body, settings=f"{batching}[warm_up]\nenabled = false\n")

    async def scenario() -> list[object]:
        async with engine(tmp_path) as serving:
            asked = [serving.predict("m", {"x": [x]}) for x in (1.0, 2.0, 3.0, 4.0, 5.0, -1.0)]
            return await asyncio.gather(*asked, return_exceptions=True)

    *good, failed = asyncio.run(scenario())
    assert isinstance(failed, ModelError)
    assert max(answer["y"].item() for answer in good) == 3  # type: ignore[index]  # as many as instances


@pytest.mark.parametrize("kind", ["return", "yield"])
def test_a_call_that_ignores_its_cancellation_loses_its_place(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = f"""
        loop = asyncio.get_running_loop()
        self.clock = getattr(self, "clock", None) or itertools.count(loop.time(), 10.0)
        loop.time = self.clock.__next__  # each look is 10 s later
        while inputs["x"][0] == 3.0:
            try:
                await asyncio.Event().wait()
            except:
                pass
        {kind} {{"y": inputs["x"]}}
"""
    one = "[batching]\nmax_batch_rows = 1\ninstances = 1\nmax_streams = 1\n[warm_up]\nenabled = false\n"
    publish(tmp_path, "m", body, "import itertools", one)
    path = tmp_path / "m/1/model.py"
    path.write_text(f"import itertools\n{path.read_text()}")

    async def answer(serving: Engine) -> Tensors:
        while True:
            try:
                return await anext(serving.stream("m", {"x": [1.0]}))
            except Overloaded:  # the first stream is not closed yet
                await asyncio.sleep(0)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(DeadlineExceeded):
                await anext(serving.stream("m", X, timeout_seconds=0.05))
            await asyncio.wait_for(answer(serving), seconds_left())

    asyncio.run(scenario())
    assert caplog.text.count("m version 1: a call of predict ignores that it was cancelled") == 1


@pytest.mark.parametrize(
    ("calls", "cycle"),
    [
        ({"a": "a"}, {"a -> a"}),
        ({"a": "b", "b": "c", "c": "a"}, {"a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"}),
    ],
)
def test_a_cycle_of_calls_is_refused_when_it_is_loaded(
    tmp_path: Path, calls: dict[str, str], cycle: set[str]
) -> None:
    for name, called in calls.items():
        publish(tmp_path, name, CALL.format(name=called), f"calls = ({called!r},)")

    async def scenario() -> list[str]:
        async with engine(tmp_path) as serving:
            statuses = [status for name in calls for status in serving.manager.status(name)]
            return [status.error for status in statuses if status.state is State.FAILED]

    (said,) = asyncio.run(scenario())
    assert said.removeprefix("Model.calls: expected no cycle, got ") in cycle


def test_only_declared_models_are_called(tmp_path: Path) -> None:
    publish(tmp_path, "m", CALL.format(name="other"))

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(FailedPrecondition, match=r"list it in the class, calls = \('other',\)"):
                await serving.predict("m", X)

    asyncio.run(scenario())


def test_what_would_block_the_loop_is_refused(tmp_path: Path) -> None:
    body = CALL.format(name="inner").replace("await ", "").replace("predict_async", "predict")
    publish(tmp_path, "m", body, "calls = ('inner',)")

    def call(name: str, inputs: Tensors) -> Tensors:
        raise AssertionError("not reached")

    servable = load(tmp_path / "m/1", RuntimeOptions(allow_code=True, call=call))
    with pytest.raises(FailedPrecondition, match=r"await context\.predict_async"):
        servable.predict({"x": np.float32([1.0])})
    servable.close()


def test_calls_are_names_of_models(tmp_path: Path) -> None:
    publish(tmp_path, "m", CALL.format(name="inner"), "calls = 'inner'")
    with pytest.raises(LoadError, match=r"Model\.calls: expected names of models, .* got 'inner'"):
        load(tmp_path / "m/1", RuntimeOptions(allow_code=True))


def test_it_calls_others_from_a_process_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "inner", 1, affine(2.0, 1.0))
    publish(tmp_path, "outer", CALL.format(name="inner"), "calls = ('inner',)", f"isolate = true\n{SINGLE}")

    async def scenario() -> list[float]:
        async with engine(tmp_path) as serving:
            return (await serving.predict("outer", X))["y"].tolist()

    assert asyncio.run(asyncio.wait_for(scenario(), seconds_left())) == [7.0]


def test_an_exit_while_it_loads_fails_the_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path, "m", "        return inputs\n")
    path = tmp_path / "m/1/model.py"
    path.write_text(path.read_text().replace("def load(self, path, context):", EXITING_LOAD))

    async def scenario() -> None:
        async with engine(tmp_path):
            pass

    asyncio.run(asyncio.wait_for(scenario(), seconds_left()))
    assert "m version 1 failed to load" in caplog.text
    assert "SystemExit: no licence" in caplog.text


@pytest.mark.parametrize("raised", ["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("kind", ["return", "yield"])
def test_an_exit_in_a_call_fails_that_call(tmp_path: Path, kind: str, raised: str) -> None:
    body = f"""
        if inputs["x"][0] == 3.0:
            raise {raised}
        {kind} {{"y": inputs["x"]}}
"""
    publish(tmp_path, "m", body)
    servable = load(tmp_path / "m/1", RuntimeOptions(allow_code=True))
    predict = FirstPart(servable).predict if is_streaming(servable) else servable.predict
    with pytest.raises(ModelError, match=raised):
        predict({"x": np.float32([3.0])})
    assert predict({"x": np.float32([1.0])})["y"].tolist() == [1.0]
    servable.close()


def test_an_exit_in_a_task_that_nobody_awaits_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
        async def poll():
            raise SystemExit("bye")

        self.task = asyncio.create_task(poll())
        await asyncio.wait([self.task])
        self.task.exception()
        return {"y": inputs["x"]}
"""
    publish(tmp_path, "m", body)

    async def scenario() -> list[float]:
        async with engine(tmp_path) as serving:
            await serving.predict("m", X)
            return (await serving.predict("m", X))["y"].tolist()

    assert asyncio.run(asyncio.wait_for(scenario(), seconds_left())) == [3.0]
    assert (
        f"a task of the model in {tmp_path / 'm/1'} raised SystemExit; its event loop goes on" in caplog.text
    )


def test_an_exit_while_it_is_closed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = (
        "        return {'y': inputs['x']}\n\n    async def close(self):\n        raise SystemExit('bye')\n"
    )
    publish(tmp_path, "m", body)
    servable = load(tmp_path / "m/1", RuntimeOptions(allow_code=True))
    servable.close()
    assert "SystemExit: bye" in caplog.text


def test_a_decorator_that_hides_the_coroutine_is_named(tmp_path: Path) -> None:
    publish(tmp_path, "m", "        return inputs\n")
    path = tmp_path / "m/1/model.py"
    path.write_text(
        path.read_text() + "\n    predict = (lambda wrapped: lambda *given: wrapped(*given))(predict)\n"
    )
    servable = load(tmp_path / "m/1", RuntimeOptions(allow_code=True))
    with pytest.raises(ModelError, match="predict returned a coroutine: mark the method"):
        servable.predict({"x": np.float32([1.0])})
    servable.close()


@pytest.mark.parametrize("kind", ["return", "yield"])
def test_an_error_in_a_task_group_is_told(tmp_path: Path, kind: str) -> None:
    body = f"""
        async def check():
            raise InvalidRequest("x: expected at least 4")

        async with asyncio.TaskGroup() as group:
            group.create_task(check())
        {kind} inputs
"""
    publish(tmp_path, "m", body)
    path = tmp_path / "m/1/model.py"
    path.write_text(f"from headrace.base.errors import InvalidRequest\n{path.read_text()}")
    servable = load(tmp_path / "m/1", RuntimeOptions(allow_code=True))
    predict = FirstPart(servable).predict if is_streaming(servable) else servable.predict
    with pytest.raises(InvalidRequest, match="expected at least 4"):
        predict({"x": np.float32([1.0])})
    servable.close()
