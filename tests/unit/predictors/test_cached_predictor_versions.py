"""The prediction cache of a version that is served: settings, doors, versions that go, threads, metrics."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.base.tensors import STRING
from headrace.batching.request import Request
from headrace.model.packed_columns import PackedColumns
from headrace.model.servable import Signature, TensorSpec
from headrace.predictors.answer_cache import key_of
from headrace.serving.engine import Engine
from headrace.versions.manifest import publish
from tests.exposition import as_text
from tests.model_directories import affine
from tests.unit.model.columns import packed_columns
from tests.waiting import until_in_loop

CACHE = "[cache]\nsize_bytes = 100000\n"


def served(directory: Path, scale: float, settings: str = CACHE) -> Path:
    publish(lambda draft: (draft / "model.onnx").write_bytes(affine(scale, 0.0)), directory / "m")
    (directory / "m" / "headrace.toml").write_text(settings)
    return directory


def scraped(engine: Engine) -> dict[tuple[str, str], float]:
    text = as_text(engine)
    return {
        (sample.name, sample.labels.get("result", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "cache" in sample.name
    }


def test_a_version_repeats_its_answers_and_its_cache_is_unloaded_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace.serving.version_loader")

    async def scenario() -> None:
        async with Engine(served(tmp_path, 2.0)) as engine:

            async def ask(x: float) -> float:
                found: float = (await engine.predict("m", {"x": [x]}))["y"].item()
                return found

            assert await asyncio.gather(*[ask(3.0) for _ in range(50)]) == [6.0] * 50
            assert [await ask(3.0), await ask(3.0), await ask(4.0)] == [6.0, 6.0, 8.0]
            first = engine.loaded("m")
            assert first.batcher.statistics.batches == 2
            metrics = scraped(engine)
            assert metrics["headrace_cache_requests_total", "miss"] == 2
            assert metrics["headrace_cache_requests_total", "joined"] == 49
            assert metrics["headrace_cache_requests_total", "hit"] == 2
            assert metrics["headrace_model_cache_requests_total", "hit"] == 2
            assert 0 < metrics["headrace_cache_bytes", ""] < 3000
            assert first.statistics.requests == 53
            gone = weakref.ref(first.cache)
            del first
            served(tmp_path, 10.0)
            await until_in_loop(lambda: engine.manager.default_version("m") == 2)
            assert await ask(3.0) == 30.0
            await until_in_loop(lambda: gc.collect() >= 0 and gone() is None)
            assert scraped(engine)["headrace_model_cache_requests_total", "miss"] == 3  # totals stay
            assert "its prediction cache answered 96.2 % of the requests without the model" in caplog.text

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_model_without_one_has_none_and_keeps_its_short_ways(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Engine(served(tmp_path, 2.0, "")) as engine:
            loaded = engine.loaded("m")
            assert loaded.predictor is loaded.batcher
            assert loaded.cache is None
            assert loaded.callers is not None
            assert scraped(engine) == {}

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_default_stands_around_the_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = served(tmp_path, 2.0, f"{CACHE}[default]\nvalues = {{ y = 0.5 }}\n")
        async with Engine(directory) as engine:
            assert [(await engine.predict("m", {"x": [3.0]}))["y"].item() for _ in range(2)] == [6.0, 6.0]
            late = await engine.predict("m", {"x": [3.0]}, timeout_seconds=0.0)
            assert late["y"].item() == 0.5
            after = await engine.predict("m", {"x": [3.0]})
            assert after["y"].item() == 6.0
            assert scraped(engine)["headrace_cache_requests_total", "hit"] == 2

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_threads_that_ask_few_different_things_get_each_their_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with Engine.in_thread(served(tmp_path, 2.0)) as engine, ThreadPoolExecutor(8) as threads:

        def ask(x: float) -> float:
            found: float = engine.predict_blocking("m", {"x": [x]})["y"].item()
            return found

        asked = random.integers(0, 20, 1000).astype(float).tolist()
        assert list(threads.map(ask, asked)) == [2 * x for x in asked]
        statistics = engine.loaded("m").statistics
        assert statistics.requests == 1000
        assert statistics.cache_misses == 20
        assert statistics.cache_hits + statistics.cache_joined == 980


@pytest.mark.parametrize("once", [False, True])
def test_texts_are_the_same_question_in_their_message_and_as_objects(once: bool) -> None:
    signature = Signature(
        "s", (TensorSpec("n", np.dtype(np.float32), ()), TensorSpec("t", STRING, (2,), context=True)), ()
    )
    texts = np.array([[b"user", b""]] * 3 if once else [[b"a", b"bc"], [b"", b"d"], [b"ef", b"g"]], object)
    inputs = {"n": np.arange(3, dtype=np.float32), "t": texts}
    layout, plain, rows = signature.check(inputs)
    packed = packed_columns(signature, inputs)
    if once:  # one row that stands for all, as messages have it
        numbers, several = packed.inputs
        alone = several._replace(size=2, came=1)
        packed = PackedColumns(packed.message, packed.places, (numbers, alone), packed.text_bytes)
    keys = [key_of(Request(layout, columns, rows, lambda _: None), 1000) for columns in (plain, packed)]
    assert keys[0] == keys[1] is not None
    assert key_of(Request(layout, packed, rows, lambda _: None), packed.text_bytes + 12 + 23) is None
