"""Warm-up: recorded requests must succeed, made-up ones need not."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import pytest

from headrace.base import cpus
from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import STRING, Array, Tensors
from headrace.batching.cost import BatchCost
from headrace.cli.app_models import publish_endpoints
from headrace.config import BatchingPolicy, ModelConfig, ServerConfig, WarmUpPolicy
from headrace.lifecycle.version_states import State
from headrace.lifecycle.warmup import WELL_KNOWN, probe, warm_up, warm_up_serving_threads
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPLAIN_SIGNATURE,
    IS_GENERATED,
    Servable,
    Signature,
    TensorSpec,
)
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.python import load
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion
from tests.model_directories import write
from tests.models import Doubling
from tests.virtual_clock import VirtualClock

T = TypeVar("T")


def record(folder: Path, *bodies: object, name: str = WELL_KNOWN) -> None:
    (folder / name).write_text("".join(json.dumps(body) + "\n" for body in bodies))


def test_without_a_recording_batches_of_several_sizes_are_made_up_and_their_cost_is_learnt() -> None:
    model, cost = Doubling(), BatchCost()
    warm_up(model, ModelConfig(batching=BatchingPolicy(max_batch_rows=32)), None, cost)
    assert set(model.batches) == {1, 8, 32}
    assert cost.known


def test_explanations_are_warmed_up_with_one_row_and_are_no_cost_of_predictions() -> None:
    class Explaining(Doubling):
        def __init__(self) -> None:
            super().__init__()
            explain = replace(self.signatures[DEFAULT_SIGNATURE], name=EXPLAIN_SIGNATURE)
            self.signatures = {**self.signatures, EXPLAIN_SIGNATURE: explain}
            self.explained: list[int] = []

        def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
            if signature == EXPLAIN_SIGNATURE:
                self.explained.append(len(inputs["x"]))
            return super().predict(inputs, signature)

    class Observed(BatchCost):
        def observe(self, rows: int, seconds: float) -> None:
            sizes.append(rows)
            super().observe(rows, seconds)

    model, sizes = Explaining(), list[int]()
    warm_up(model, ModelConfig(batching=BatchingPolicy(max_batch_rows=32)), None, Observed())
    assert model.explained == [1]
    assert len(sizes) == len(model.batches) - 1 - len({1, 8, 32})  # the first call of a size is not timed


def test_only_allowed_sizes_are_made_up() -> None:
    model = Doubling()
    policy = BatchingPolicy(max_batch_rows=16, allowed_batch_rows=(4, 16))
    warm_up(model, ModelConfig(batching=policy), None, BatchCost())
    assert set(model.batches) == {4, 16}


def test_rows_and_columns_are_replayed_from_beside_the_versions(tmp_path: Path) -> None:
    version = tmp_path / "1"
    version.mkdir()
    record(
        tmp_path, {"inputs": {"x": [[1, 2], [3, 4], [5, 6]]}}, {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}
    )
    model = Doubling()
    warm_up(model, ModelConfig(), version, BatchCost())
    assert model.batches[:2] == [3, 2]


def test_no_more_requests_than_allowed_are_replayed(tmp_path: Path) -> None:
    record(tmp_path, *[{"inputs": {"x": [[1, 2]] * 5}}] * 9)
    model = Doubling()
    warm_up(model, ModelConfig(warm_up=WarmUpPolicy(max_requests=2)), tmp_path, BatchCost())
    assert model.batches.count(5) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": {"x": [[-1, 2]]}}, "line 2 .* failed"),
        ({"inputs": {"y": [[1, 2]]}}, "line 2 .* is not a request"),
        ({"signature_name": "other", "inputs": {}}, "line 2 .* is not a request"),
        ([1], "line 2 .* is not a request"),
        ({}, "line 2 .* is not a request"),
    ],
)
def test_a_recorded_request_that_fails_fails_the_version(tmp_path: Path, body: object, said: str) -> None:
    record(tmp_path, {"inputs": {"x": [[1, 2]]}}, body)
    with pytest.raises(LoadError, match=said):
        warm_up(Doubling(), ModelConfig(), tmp_path, BatchCost())


def test_a_recording_that_the_settings_name_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"gone\.jsonl exists neither"):
        warm_up(
            Doubling(), ModelConfig(warm_up=WarmUpPolicy(requests=("gone.jsonl",))), tmp_path, BatchCost()
        )


def test_a_model_that_cannot_answer_zeros_is_not_held_to_it() -> None:
    def refuse() -> None:
        raise ValueError("not zeros")

    warm_up(Doubling(before=refuse), ModelConfig(), None, BatchCost())


def test_made_up_rows_are_marked_so_that_their_failure_is_no_error_in_the_log(tmp_path: Path) -> None:
    class Marked(Doubling):
        def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
            marks.append(IS_GENERATED.get())
            return super().predict(inputs, signature)

    marks = list[bool]()
    warm_up(Marked(), ModelConfig(), None, BatchCost())
    assert set(marks) == {True}
    marks.clear()
    record(tmp_path, {"instances": [{"x": [1.0, 2.0]}]})
    warm_up(Marked(), ModelConfig(), tmp_path, BatchCost())
    assert marks[:2] == [False, True]  # the recorded request, and the first of those made up


CLASSES = """
import numpy as np

class Model:
    inputs = [("x", "FP32", ())]
    outputs = [("y", "FP32", ())]

    def predict(self, inputs):
        return {"y": np.float32([{"oslo": 1.0}["rome"]])}
"""


def checked(model: Servable, *, must_answer: bool = False) -> bool:
    return probe(model, ModelConfig(), ("m", 1), 0.0, must_answer, ())


@pytest.mark.parametrize("kind", ["endpoint", "model.py"])
def test_the_log_has_the_exception_of_a_model_and_a_place_for_recorded_rows_that_exists(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.py").write_text(CLASSES)
    if kind == "endpoint":
        (tmp_path / "app.py").write_text(
            "import headrace\n\n@headrace.endpoint\ndef price(city: str) -> float:\n"
            "    return {'oslo': 1.0}['rome']\n"
        )
        publish_endpoints(tmp_path / "app.py", tmp_path, 1)
    version = tmp_path / "price" / "1" if kind == "endpoint" else tmp_path
    model = load(version / "model.py", RuntimeOptions(allow_code=True))
    warm_up(model, ModelConfig(), None, BatchCost())
    assert not checked(model)
    place = "" if kind == "endpoint" else "; record some in warm_up.jsonl"
    said = "app.py:5: KeyError: 'rome'" if kind == "endpoint" else "model.py:9: KeyError: 'rome'"
    assert [one.getMessage() for one in caplog.records] == [
        f"a generated warm-up batch of 1 rows failed: {said}",
        f"m version 1: row independence was not checked: every generated request failed ({said}){place}",
    ]
    with pytest.raises(LoadError, match="fails every generated request") as refused:
        checked(model, must_answer=True)
    way_out = (
        "in the file of --config, under" if kind == "endpoint" else "warm_up.jsonl, or set `.warm_up. must"
    )
    assert re.search(way_out, refused.value.message)
    assert "rome" not in refused.value.told  # callers are told no more of an exception than elsewhere
    model.close()


def test_the_log_does_not_refer_to_itself_for_an_isolated_model(caplog: pytest.LogCaptureFixture) -> None:
    """The exception stays in the process of the model, which has logged its traceback."""

    def fail() -> None:
        raise ModelError("the model raised KeyError; the server's log says more")

    assert not checked(Doubling(before=fail))
    assert [one.getMessage().partition(": ")[2] for one in caplog.records] == [
        "row independence was not checked: every generated request failed (the model raised KeyError); "
        "record some in warm_up.jsonl"
    ]


@pytest.mark.parametrize("has_files", [True, False])
def test_equal_generated_rows_are_logged_with_advice_to_record_requests(
    has_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Alike(Doubling):
        def __init__(self) -> None:
            super().__init__()
            x, y = TensorSpec("x", STRING, ()), TensorSpec("y", np.dtype(np.float32), ())
            red = {"x": np.array([b"red"], STRING)}
            self.signatures = {DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, (x,), (y,), sample=red)}
            self.has_files = has_files

        def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
            return {"y": np.zeros(len(inputs["x"]), np.float32)}

    assert checked(Alike())
    (line,) = caplog.records
    place = "; record some in warm_up.jsonl" if has_files else ""
    assert line.getMessage().endswith(f"the row count was checked{place} (signature serving_default)")


def test_warm_up_can_be_switched_off() -> None:
    model = Doubling()
    warm_up(model, ModelConfig(warm_up=WarmUpPolicy(enabled=False)), None, BatchCost())
    assert model.batches == []


def test_a_single_input_needs_no_name_and_a_large_request_comes_in_parts_filled_up(tmp_path: Path) -> None:
    record(tmp_path, {"instances": [[1, 2]] * 5}, {"inputs": [[1, 2]]})
    model = Doubling()
    policy = BatchingPolicy(max_batch_rows=4, allowed_batch_rows=(2, 4))
    warm_up(model, ModelConfig(batching=policy), tmp_path, BatchCost())
    assert model.batches[:3] == [4, 2, 2]


@pytest.mark.parametrize("is_native", [True, False])
def test_only_made_up_batches_of_models_without_the_gil_are_left_to_idle_time(
    tmp_path: Path, *, is_native: bool
) -> None:
    record(tmp_path, {"inputs": {"x": [[1, 2]] * 5}})
    model, gently = Doubling(), list[int]()
    model.is_native = is_native  # type: ignore[attr-defined]

    def native(call: Callable[[], T]) -> T:
        assert model.batches == [5]  # a recording is read by Python
        result = call()
        gently.extend(model.batches[1:])
        return result

    warm_up(model, ModelConfig(batching=BatchingPolicy(max_batch_rows=8)), tmp_path, BatchCost(), native)
    assert set(model.batches) == {5, 1, 8}
    assert set(gently) == ({1, 8} if is_native else set())


def test_each_allowed_size_is_generated_even_for_a_slow_model() -> None:
    model, cost = Doubling(), BatchCost()
    for rows in (1, 64):
        cost.observe(rows, 10.0)
    policy = BatchingPolicy(max_batch_rows=64, allowed_batch_rows=(1, 2, 4, 16, 64))
    warm_up(model, ModelConfig(batching=policy), None, cost)
    assert model.batches == [1, 2, 4, 16, 64]  # once each: what they cost is not measured


def test_answered_batches_are_returned_once_for_each_shape(tmp_path: Path) -> None:
    record(tmp_path, {"inputs": {"x": [[1, 2]] * 5}}, {"inputs": {"x": [[3, 4]] * 5}})
    answered = warm_up(
        Doubling(), ModelConfig(batching=BatchingPolicy(max_batch_rows=8)), tmp_path, BatchCost()
    )
    assert [(batch.rows, batch.inputs["x"][0, 0]) for batch in answered] == [(5, 1), (1, 0), (8, 0)]


class Seeing(Doubling):
    """A Doubling that knows in which thread it saw how many rows, and whether they were real."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        for name, value in options.items():
            setattr(self, name, value)
        self.calls: list[tuple[str, int, bool]] = []

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        self.calls.append((threading.current_thread().name, len(inputs["x"]), bool((inputs["x"] == 1).all())))
        return super().predict(inputs, signature)

    @property
    def first_seen_in_requests(self) -> set[tuple[str, int]]:
        """Threads and sizes of which the first call was a request."""
        first: dict[tuple[str, int], bool] = {}
        for thread, rows, is_real in self.calls:
            first.setdefault((thread, rows), is_real)
        return {which for which, is_real in first.items() if is_real}


@pytest.mark.parametrize("inline_seconds", [0.0, 1.0], ids=["in instances", "in the serving thread"])
def test_no_thread_that_serves_an_object_sees_a_size_first_in_a_request(inline_seconds: float) -> None:
    sizes = (1, 2, 4, 8)
    policy = BatchingPolicy(
        max_batch_rows=8, allowed_batch_rows=sizes, instances=3, inline_seconds=inline_seconds
    )

    async def scenario() -> None:
        model = Seeing()
        async with Engine.from_objects({"m": model}, batching=policy) as engine:
            warmed = {(thread, rows) for thread, rows, _ in model.calls}
            expected = {f"m/1/{number}" for number in range(3)}
            if inline_seconds:
                expected.add(threading.current_thread().name)
            assert warmed == {(thread, rows) for thread in expected for rows in sizes}
            for rows in (*sizes, 7, 3):
                asked = ({"x": np.ones((rows, 2), np.float32)} for _ in range(6))
                await asyncio.gather(*(engine.predict("m", one) for one in asked))
        assert any(is_real for _, _, is_real in model.calls)
        assert model.first_seen_in_requests == set()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_batch_that_fails_in_another_thread_fails_the_version(caplog: pytest.LogCaptureFixture) -> None:
    threads = set[str]()

    def refuse() -> None:
        threads.add(threading.current_thread().name)
        if len(threads) > 1:
            raise ValueError("objects created in a thread can only be used in that same thread")

    async def scenario() -> None:
        policy = BatchingPolicy(instances=2, inline_seconds=0.0)
        async with Engine.from_objects({"m": Doubling(before=refuse)}, batching=policy) as engine:
            (status,) = engine.manager.status("m")
            assert status.state is State.FAILED
            assert "a batch of 1 rows was answered in one thread and failed in another" in status.error
            assert "set batching.instances = 1" in status.error

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_without_a_warm_up_no_thread_is_started() -> None:
    clock = VirtualClock()
    config = ModelConfig(warm_up=WarmUpPolicy(enabled=False))
    loaded = LoadedVersion("unwarmed", 1, Doubling(), config, clock)
    warm_up_serving_threads(loaded.servable, config, None, loaded.batcher, clock)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unwarmed")]


def test_by_default_threads_are_started_for_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the settings say how many instances there are, all are warmed up, however long that takes."""
    now = 0.0

    def a_second() -> None:
        nonlocal now
        now += 0.05

    monkeypatch.setattr("headrace.lifecycle.warmup.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(cpus, "available", lambda: 40)
    for instances, started in ((0, range(2, 39)), (5, range(5, 6))):
        clock, config = VirtualClock(), ModelConfig(batching=BatchingPolicy(instances=instances))
        model = Seeing(may_block=True)
        model._before = a_second
        loaded = LoadedVersion(f"timed-{instances}", 1, model, config, clock)
        warm_up_serving_threads(model, config, None, loaded.batcher, clock)
        threads = {thread for thread, _, _ in model.calls}
        assert len(threads) in started
        loaded.batcher.close()


SEEN = """
import threading

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        self._version = path.name

    def predict(self, inputs):
        x = inputs["x"]
        with open({file!r}, "a") as file:
            print(self._version, threading.current_thread().name, len(x), bool((x == 1).all()), file=file)
        return {{"y": x}}
"""


@pytest.mark.parametrize("instances", [1, 2])
def test_no_thread_of_a_version_in_python_sees_a_size_first_in_a_request(
    tmp_path: Path, instances: int
) -> None:
    """Neither those of the first version, nor those of one that takes over while requests come."""
    models, seen = tmp_path / "models", tmp_path / "seen"
    batching = "[batching]\nmax_batch_rows = 4\nallowed_batch_rows = [1, 2, 4]\n"
    batching += f"instances = {instances}\n" if instances > 1 else ""  # one is the default
    write(models, "m", 1, SEEN.format(file=str(seen)), batching)

    async def ask(engine: Engine) -> None:
        asked = ({"x": np.ones(rows, np.float32)} for rows in (1, 2, 3, 4, 1, 1))
        await asyncio.gather(*(engine.predict("m", one) for one in asked))

    async def scenario() -> None:
        async with Engine(models, config=ServerConfig(allow_code=True, poll_seconds=0.05)) as engine:
            assert engine.loaded("m").batcher.instances.most == instances
            await ask(engine)
            write(models, "m", 2, SEEN.format(file=str(seen)))
            while engine.loaded("m").version == 1:
                await ask(engine)
            await ask(engine)

    asyncio.run(asyncio.wait_for(scenario(), 120))
    first: dict[tuple[str, ...], str] = {}
    for line in seen.read_text().splitlines():
        *which, is_real = line.split()
        first.setdefault(tuple(which), is_real)
    threads = [(str(version), f"m/{version}/{number}") for version in (1, 2) for number in range(instances)]
    assert first == {(*thread, rows): "False" for thread in threads for rows in "124"}
