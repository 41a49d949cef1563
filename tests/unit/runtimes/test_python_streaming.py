"""Python models whose ``predict`` yields: answers in parts, their ends, and what cannot go with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    Unavailable,
)
from headrace.base.tensors import Array
from headrace.config import ServerConfig
from headrace.lifecycle.version_states import State
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Channel, Outcome
from tests.model_directories import affine, write
from tests.waiting import seconds_left, until_in_loop

HEAD = """
import asyncio
import threading
from pathlib import Path

class Model:
    inputs = [("count", "INT64", [])]
    outputs = [("word", "BYTES", []), ("vector", "FP32", [None])]
    {declared}

    def load(self, path, context):
        self.path, self.context, self.computed, self.closed = path, context, 0, threading.Event()

    {kind} predict(self, inputs):
        try:
            for index in range(int(inputs["count"][0])):
                {step}
                self.computed = index + 1
                yield {{"word": [str(index)], "vector": [[index] * index]}}
        finally:
            self.closed.set()
            (self.path / "closed").write_text(threading.current_thread().name)
"""
HIDDEN = """
    generated = predict

    def predict(self, inputs):
        return self.generated(inputs)
"""
COLD = "[warm_up]\nenabled = false\n"
KINDS = pytest.mark.parametrize("kind", ["def", "async def"])
COUNT = {"count": [3]}


def publish(
    models: Path, name: str, kind: str, step: str = "pass", *, settings: str = COLD, declared: str = ""
) -> Path:
    path = models / name / "1"
    path.mkdir(parents=True)
    (path / "model.py").write_text(HEAD.format(kind=kind, step=step, declared=declared))
    (models / name / "headrace.toml").write_text(settings)
    return path


def engine(models: Path, drain_seconds: float = 30.0) -> Engine:
    return Engine(models, config=ServerConfig(allow_code=True, drain_seconds=drain_seconds))


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, seconds_left()))  # type: ignore[arg-type]


def words(parts: list[dict[str, Array]]) -> list[str]:
    return [part["word"][0].decode() for part in parts]


async def all_of(stream: AsyncIterator[dict[str, Array]]) -> list[dict[str, Array]]:
    return [part async for part in stream]


@KINDS
def test_each_part_comes_as_it_is_yielded_and_the_generator_is_closed(tmp_path: Path, kind: str) -> None:
    path = publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            parts = await all_of(serving.stream("m", COUNT))
            assert words(parts) == ["0", "1", "2"]
            assert [part["vector"].tolist() for part in parts] == [[[]], [[1.0]], [[2.0, 2.0]]]
            assert await all_of(serving.stream("m", {"count": [0]})) == []
            chosen = await all_of(serving.stream("m", COUNT, outputs=["word"]))
            assert [list(part) for part in chosen] == [["word"]] * 3

    run(scenario())
    assert (path / "closed").read_text() == ("model loop" if kind == "async def" else "m/1/0")


@KINDS
def test_a_part_is_computed_when_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            model = serving.loaded("m").servable._model  # type: ignore[attr-defined]
            async with aclosing(serving.stream("m", {"count": [100]})) as stream:
                for index in range(3):
                    await anext(stream)
                    assert model.computed == index + 1
            await until_in_loop(model.closed.is_set)
            assert model.computed == 3

    run(scenario())


@KINDS
def test_streams_take_turns(tmp_path: Path, kind: str) -> None:
    """Also those of a generator with one thread: a slow reader keeps nobody out."""
    publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            first, second = serving.stream("m", COUNT), serving.stream("m", COUNT)
            assert words([await anext(first), await anext(second), await anext(first)]) == ["0", "0", "1"]
            assert words(await all_of(second)) == ["1", "2"]
            assert words(await all_of(first)) == ["2"]

    run(scenario())


@KINDS
def test_a_stream_that_is_left_is_closed_and_counted(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind)
    seen: list[Outcome] = []

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            serving.outcomes.observe(seen.append)
            loaded = serving.loaded("m")
            stream = serving.stream("m", COUNT)
            await anext(stream)
            assert loaded.outstanding == 1
            await stream.aclose()
            await all_of(serving.stream("m", COUNT))
            await until_in_loop(lambda: loaded.outstanding == 0)
            counted = loaded.statistics
            assert (counted.requests, counted.rows, counted.batches, counted.cancelled) == (1, 1, 2, 1)
            assert serving.outcomes.tallies[Channel.IN_PROCESS].answered == 1

    run(scenario())
    assert [outcome.code.name for outcome in seen] == ["CANCELLED", "OK"]
    assert (seen[1].rows, seen[1].answered_by, seen[1].is_computed) == (1, "model", True)


@KINDS
def test_the_exception_of_a_model_ends_its_stream(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, "m", kind, "assert index < 2, 'secret'")

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            stream = serving.stream("m", {"count": [5]})
            assert words([await anext(stream), await anext(stream)]) == ["0", "1"]
            with pytest.raises(ModelError, match="AssertionError") as raised:
                await anext(stream)
            assert "secret" not in raised.value.told
            assert serving.loaded("m").statistics.failures == 1

    run(scenario())
    assert "secret" in caplog.text


@KINDS
@pytest.mark.parametrize(
    ("step", "said"),
    [("yield {'word': ['x']}", "declares the outputs word, vector"), ("yield 1", "answered with no mapping")],
)
def test_a_part_that_is_not_as_declared_ends_the_stream(
    tmp_path: Path, kind: str, step: str, said: str
) -> None:
    publish(tmp_path, "m", kind, step)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(ModelError, match=said):
                await all_of(serving.stream("m", COUNT))

    run(scenario())


def test_a_decorator_that_hides_a_generator_is_named(tmp_path: Path) -> None:
    path = publish(tmp_path, "m", "def")
    (path / "model.py").write_text((path / "model.py").read_text() + HIDDEN)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(ModelError, match="returned a generator: a decorator hides that it yields"):
                await all_of(serving.stream("m", COUNT))

    run(scenario())


def test_an_error_that_the_model_means_for_its_caller_is_told(tmp_path: Path) -> None:
    raises = "from headrace import InvalidRequest; raise InvalidRequest('too many', field='count')"
    publish(tmp_path, "m", "def", raises)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(InvalidRequest, match="count: too many"):
                await all_of(serving.stream("m", COUNT))
            with pytest.raises(InvalidRequest, match="missing input 'count'"):
                await all_of(serving.stream("m", {}))
            with pytest.raises(NotFound):
                await all_of(serving.stream("n", COUNT))
            assert serving.outcomes.tallies[Channel.IN_PROCESS].failed["INVALID_ARGUMENT"] == 2

    run(scenario())


def test_a_deadline_ends_a_stream_that_waits(tmp_path: Path) -> None:
    publish(tmp_path, "m", "async def", "await asyncio.sleep(3600)")

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(DeadlineExceeded):
                await anext(serving.stream("m", COUNT, timeout_seconds=0.2))
            # Closing the engine waits for the generator, so it ends only if that was cancelled.

    run(scenario())


@KINDS
def test_a_deadline_ends_a_stream_whose_reader_rests(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            loaded = serving.loaded("m")
            assert loaded.streams is not None
            checked = loaded.signatures[DEFAULT_SIGNATURE].check({"count": [10**9]})
            stream = loaded.streams.open(checked, time.monotonic() + 0.2)
            with suppress(DeadlineExceeded):  # on a machine that is very busy
                await anext(stream)
            await until_in_loop(lambda: not loaded.outstanding, every=0.01)
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
            with pytest.raises(DeadlineExceeded):
                await all_of(serving.stream("m", COUNT, timeout_seconds=0.0))

    run(scenario())


def test_a_deadline_is_passed_on_to_the_models_it_calls(tmp_path: Path) -> None:
    (tmp_path / "inner/1").mkdir(parents=True)
    (tmp_path / "inner/headrace.toml").write_text(COLD)
    (tmp_path / "inner/1/model.py").write_text(
        """
import asyncio
from pathlib import Path

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def load(self, path, context):
        self.path = path

    async def predict(self, inputs):
        try:
            await asyncio.Event().wait()
        finally:
            (self.path / "cancelled").touch()
"""
    )
    publish(
        tmp_path, "m", "def", "self.context.predict('inner', {'x': [1.0]})", declared="calls = ('inner',)"
    )

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(DeadlineExceeded):
                await all_of(serving.stream("m", COUNT, timeout_seconds=0.2))

    run(scenario())
    assert (tmp_path / "inner/1/cancelled").exists()


@KINDS
def test_no_more_streams_are_open_than_may_be(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind, settings=f"{COLD}[batching]\nmax_streams = 2\n")

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            streams = [serving.stream("m", COUNT) for _ in range(2)]
            for stream in streams:
                await anext(stream)
            with pytest.raises(Overloaded, match=r"2 streams of m version 1 are open.*max_streams"):
                await anext(serving.stream("m", COUNT))
            assert serving.loaded("m").statistics.refused == 1
            await all_of(streams[0])
            await until_in_loop(lambda: serving.loaded("m").outstanding == 1)
            assert words(await all_of(serving.stream("m", COUNT))) == ["0", "1", "2"]
            await streams[1].aclose()

    run(scenario())


async def swap(models: Path, kind: str, serving: Engine) -> None:
    """Publish version 2, and wait until it is the default."""
    publish(models / "new", "m", kind)
    (models / "new/m/1").rename(models / "m/2")
    await until_in_loop(lambda: serving.loaded("m").version == 2, every=0.01)


@KINDS
def test_a_swap_waits_for_streams(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path, drain_seconds=3600.0) as serving:
            stream = serving.stream("m", COUNT)
            await anext(stream)
            await swap(tmp_path, kind, serving)
            assert words(await all_of(stream)) == ["1", "2"]
            await until_in_loop(lambda: serving.manager.status("m")[-1].state is not State.DRAINING)
            assert words(await all_of(serving.stream("m", COUNT))) == ["0", "1", "2"]

    run(scenario())


@KINDS
def test_a_swap_ends_streams_that_last_too_long(tmp_path: Path, kind: str) -> None:
    path = publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path, drain_seconds=0.1) as serving:
            endless = serving.stream("m", {"count": [10**9]})
            await anext(endless)
            await swap(tmp_path, kind, serving)
            with pytest.raises(Unavailable, match="unloaded before its answer was complete"):
                await all_of(endless)

    run(scenario())
    assert (path / "closed").exists()


@KINDS
def test_a_whole_answer_is_refused_with_the_way_out(tmp_path: Path, kind: str) -> None:
    publish(tmp_path, "m", kind)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            with pytest.raises(FailedPrecondition, match=r"generate_stream, with ModelStreamInfer, or"):
                await serving.predict("m", COUNT)
            blocking = asyncio.to_thread(serving.predict_blocking, "m", COUNT)
            with pytest.raises(FailedPrecondition, match="m answers in parts"):
                await blocking

    run(scenario())


def test_a_model_that_does_not_yield_answers_in_one_part(tmp_path: Path) -> None:
    write(tmp_path, "plain", 1, affine(2.0, 1.0))

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            (part,) = await all_of(serving.stream("plain", {"x": np.array([1.0, 2.0], np.float32)}))
            assert part["y"].tolist() == [3.0, 5.0]

    run(scenario())


@KINDS
def test_warm_up_takes_the_first_part_of_recorded_requests(tmp_path: Path, kind: str) -> None:
    path = publish(tmp_path, "m", kind, "(self.path / f'warmed {index}').touch()", settings="")
    (path / "warm_up.jsonl").write_text('{"inputs": {"count": [7]}}\n')
    failing = publish(tmp_path, "failing", kind, "raise ValueError('cold')", settings="")
    (failing / "warm_up.jsonl").write_text('{"inputs": {"count": [7]}}\n')

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            assert (path / "warmed 0").exists()
            assert not (path / "warmed 1").exists()
            assert (path / "closed").exists()
            (status,) = serving.manager.status("failing")
            assert "warm-up: line 1 of warm_up.jsonl failed" in status.error

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("[cache]\nsize_bytes = 100000\n", r"\[cache\] of headrace.toml needs whole answers"),
        ("[default.values]\nword = 'x'\nvector = [1.0]\n", r"\[default\] of headrace.toml needs whole"),
        ("isolate = true\n", "a process of its own .* does not pass on"),
        ("[batching]\ninstance_processes = 1\n", "a process of its own .* does not pass on"),
    ],
)
def test_what_needs_whole_answers_is_refused_when_it_is_loaded(
    tmp_path: Path, settings: str, named: str
) -> None:
    publish(tmp_path, "m", "def", settings=settings)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            (status,) = serving.manager.status("m")
            assert (status.state, status.attempts) == (State.FAILED, 1)
            with pytest.raises(FailedPrecondition, match=named):
                serving.loaded("m")

    run(scenario())


GROUPED = """
import asyncio

class Model:
    inputs = [("count", "INT64", [])]
    outputs = [("word", "BYTES", [])]

    async def predict(self, inputs):
        async with asyncio.TaskGroup() as group:
            failing = int(inputs["count"][0]) == 7
            group.create_task(self.fail() if failing else asyncio.sleep(3600))
            yield {"word": ["0"]}
            for index in range(1, 3):
                yield {"word": [await group.create_task(asyncio.sleep(0, str(index)))]}

    async def fail(self):
        raise ValueError("secret")
"""


def test_a_task_group_may_last_across_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Python's own raise an exception group where such a generator is closed."""
    path = publish(tmp_path, "m", "def", settings="")
    (path / "model.py").write_text(GROUPED)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            stream = serving.stream("m", COUNT)
            assert words([await anext(stream), await anext(stream)]) == ["0", "1"]
            await stream.aclose()
            await until_in_loop(lambda: not serving.loaded("m").outstanding)
            assert not caplog.records
            stream = serving.stream("m", {"count": [7]})
            await anext(stream)
            await until_in_loop(lambda: "ValueError: secret" in caplog.text)  # nobody asks for a part
            with pytest.raises(ModelError, match="ExceptionGroup"):
                await anext(stream)

    run(scenario())


def test_the_example_of_the_guide_works(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/runtimes.md").read_text("utf-8")
    _, _, section = guide.partition("### Streaming answers")
    source, _, _ = section.partition("```python\n")[2].partition("```")
    path = publish(tmp_path, "words", "def")
    (path / "model.py").write_text(source)

    async def scenario() -> None:
        async with engine(tmp_path) as serving:
            parts = await all_of(serving.stream("words", {"text": ["one two three"], "most": [2]}))
            assert words(parts) == ["one", "two"]

    run(scenario())
