"""The engine as a Python object: in an event loop, beside threads, over a directory and over objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace import Engine
from headrace.base.errors import DeadlineExceeded, HeadraceError, InvalidRequest, NotFound, Refused
from headrace.base.tensors import Tensors
from headrace.config import BatchingPolicy, ServerConfig
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.serving.engine import ModelSpec
from tests.faults.held import held_until
from tests.model_directories import write

ALLOWING_CODE = ServerConfig(allow_code=True)


class Doubler:
    """A Servable made in Python; it remembers the sizes of its batches."""

    platform = "python"
    signatures: Mapping[str, Signature] = {
        DEFAULT_SIGNATURE: Signature(
            DEFAULT_SIGNATURE,
            (TensorSpec("x", np.dtype(np.float32), ()),),
            (TensorSpec("y", np.dtype(np.float32), ()), TensorSpec("z", np.dtype(np.float32), ())),
        )
    }

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.closed = 0

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        self.batches.append(len(inputs["x"]))
        return {"y": inputs["x"] * 2, "z": inputs["x"] * 3}

    def close(self) -> None:
        self.closed += 1


def test_an_engine_answers_in_an_event_loop(menagerie: Path) -> None:
    async def scenario() -> None:
        async with Engine(menagerie, config=ALLOWING_CODE) as engine:
            answer = await engine.predict("half_plus_two", {"x": [1.0, 2.0, 5.0]})
            assert answer["y"].tolist() == [3.5, 4.0, 5.5]
            many = await asyncio.gather(
                *(engine.predict("half_plus_two", {"x": [float(n)]}) for n in range(300))
            )
            assert [one["y"].item() for one in many] == [n / 2 + 3 for n in range(300)]

    asyncio.run(scenario())


def test_versions_labels_and_outputs_are_chosen_by_the_call(menagerie: Path) -> None:
    async def scenario() -> None:
        async with Engine(menagerie) as engine:
            for spec, expected in (
                (ModelSpec("half_plus_two", version=1), 3.0),
                (ModelSpec("half_plus_two", version=2), 4.0),
                (ModelSpec("half_plus_two", label="stable"), 3.0),
                (ModelSpec("half_plus_two", label="canary"), 4.0),
            ):
                assert (await engine.predict(spec, {"x": [2.0]}))["y"].tolist() == [expected]
            rows = {"a": [[1, 2, 3]], "b": [10]}
            assert list(await engine.predict("pair", rows, outputs=["largest"])) == ["largest"]
            assert list(await engine.predict("pair", rows)) == ["total", "largest"]

    asyncio.run(scenario())


def test_invalid_calls_raise_typed_errors(menagerie: Path) -> None:
    async def scenario() -> None:
        async with Engine(menagerie) as engine:
            x = {"x": [1.0]}
            with pytest.raises(NotFound):
                await engine.predict("missing", x)
            with pytest.raises(NotFound):
                await engine.predict(ModelSpec("half_plus_two", version=9), x)
            with pytest.raises(NotFound):
                await engine.predict(ModelSpec("half_plus_two", label="nightly"), x)
            with pytest.raises(InvalidRequest, match="z"):
                await engine.predict("half_plus_two", {"z": [1.0]})
            with pytest.raises(InvalidRequest, match="z"):
                await engine.predict("half_plus_two", x, outputs=["z"])
            with pytest.raises(InvalidRequest, match="x"):
                await engine.predict("half_plus_two", {"x": [[1.0, 2.0]]})

    asyncio.run(scenario())


def test_a_timeout_ends_the_wait(tmp_path: Path) -> None:
    write(tmp_path / "models", "slow", 1, held_until(gate := tmp_path / "gate"))

    async def scenario() -> None:
        async with Engine(tmp_path / "models", config=ALLOWING_CODE) as engine:
            async with asyncio.timeout(60):  # the model holds its batch for longer
                with pytest.raises((DeadlineExceeded, Refused)):
                    await engine.predict("slow", {"seconds": [3.0]}, timeout_seconds=0.2)
            gate.touch()
            assert len((await engine.predict("slow", {"seconds": [0.0]}))["rows"]) == 1

    asyncio.run(scenario())


def test_an_engine_in_a_thread_of_its_own_answers_any_thread(menagerie: Path) -> None:
    with Engine.in_thread(menagerie) as engine, ThreadPoolExecutor(8) as threads:
        answers = threads.map(
            lambda n: engine.predict_blocking("half_plus_two", {"x": [float(n)]})["y"].item(), range(200)
        )
        assert list(answers) == [n / 2 + 3 for n in range(200)]
        with pytest.raises(NotFound):
            engine.predict_blocking("missing", {"x": [1.0]})


def test_python_objects_are_served_and_their_requests_merged() -> None:
    doubler = Doubler()

    async def scenario() -> None:
        engine = Engine.from_objects({"doubler": doubler}, batching=BatchingPolicy(max_batch_rows=64))
        async with engine:
            doubler.batches.clear()  # warm-up's
            answers = await asyncio.gather(
                *(engine.predict("doubler", {"x": [float(n)]}, outputs=["y"]) for n in range(256))
            )
        assert [one["y"].item() for one in answers] == [2.0 * n for n in range(256)]
        assert all(list(one) == ["y"] for one in answers)

    asyncio.run(scenario())
    assert sum(doubler.batches) >= 256
    assert max(doubler.batches) <= 64
    assert len(doubler.batches) < 128, "requests that came together should have shared batches"
    assert doubler.closed == 1


def test_an_engine_follows_the_directory(tmp_path: Path, menagerie: Path) -> None:
    from tests.model_directories import affine

    write(tmp_path, "m", 1, affine(1.0, 1.0))

    async def scenario() -> None:
        async with Engine(tmp_path, config=ServerConfig(poll_seconds=0.05)) as engine:
            assert (await engine.predict("m", {"x": [1.0]}))["y"].tolist() == [2.0]
            write(tmp_path, "m", 2, affine(1.0, 2.0))
            async with asyncio.timeout(20):
                while (await engine.predict("m", {"x": [1.0]}))["y"].tolist() != [3.0]:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_an_engine_that_is_closed_says_so(menagerie: Path) -> None:
    async def scenario() -> None:
        engine = Engine(menagerie)
        async with engine:
            pass
        with pytest.raises(HeadraceError):
            await engine.predict("half_plus_two", {"x": [1.0]})

    asyncio.run(scenario())
