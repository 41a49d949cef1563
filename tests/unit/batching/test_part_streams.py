"""Open streams of a version: where steps run, and how generators end that do not behave."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DeadlineExceeded, ModelError, Overloaded, Unavailable
from headrace.base.tensors import Array, Tensors
from headrace.config import BatchingPolicy, ServerConfig
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.serving.engine import Engine
from tests.models import DoublingInParts
from tests.waiting import seconds_left, until_in_loop

X = {"x": np.zeros((1, 2), np.float32)}
Part = dict[str, Array]


def part(value: float) -> Part:
    return {"y": np.full((1, 2), value, np.float32)}


class Scripted(DoublingInParts):
    """Answers with the parts of a generator of the test."""

    def __init__(self, script: Callable[[], Generator[Tensors, None, None]]) -> None:
        super().__init__()
        self.script = script
        self.cold = True

    def parts(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Generator[Tensors, None, None]:
        if self.cold:  # warm-up
            self.cold = False
            return iter(())  # type: ignore[return-value]
        return self.script()


class ScriptedInLoop(DoublingInParts):
    """Answers with the parts of an async generator of the test, in a loop of its own thread."""

    def __init__(self, script: Callable[[], AsyncGenerator[Tensors, None]]) -> None:
        super().__init__()
        self.script = script
        self.loop: Any = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def parts(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Any:
        return self.script()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def run(model: DoublingInParts, scenario: Callable[[Engine], Any], **policy: int) -> None:
    async def served() -> None:
        batching = BatchingPolicy(instances=1, **policy)  # type: ignore[arg-type]
        config = ServerConfig(drain_seconds=0.2)
        async with Engine(objects={"m": model}, batching=batching, config=config) as engine:
            await scenario(engine)

    asyncio.run(asyncio.wait_for(served(), seconds_left()))


def test_all_steps_run_in_one_thread_and_streams_share_threads() -> None:
    seen: list[list[int]] = []

    def script() -> Generator[Part, None, None]:
        mine: list[int] = []
        seen.append(mine)
        try:
            for index in range(3):
                mine.append(threading.get_ident())
                yield part(index)
        finally:
            mine.append(threading.get_ident())

    async def scenario(engine: Engine) -> None:
        streams = [engine.stream("m", X) for _ in range(4)]
        for _ in range(3):
            for stream in streams:
                await anext(stream)
        for stream in reversed(streams):
            await stream.aclose()
        await until_in_loop(lambda: not engine.loaded("m").outstanding)

    async def served() -> None:
        policy = BatchingPolicy(instances=2)
        async with Engine(objects={"m": Scripted(script)}, batching=policy) as engine:
            await scenario(engine)

    asyncio.run(asyncio.wait_for(served(), seconds_left()))
    assert [len(mine) for mine in seen] == [4] * 4
    assert all(len(set(mine)) == 1 for mine in seen)
    assert len({mine[0] for mine in seen}) == 2


def test_a_timeout_may_last_across_parts() -> None:
    async def script() -> AsyncGenerator[Part, None]:
        async with asyncio.timeout(3600):
            for index in range(3):
                await asyncio.sleep(0)
                yield part(index)

    async def scenario(engine: Engine) -> None:
        assert [one["y"][0, 0] async for one in engine.stream("m", X)] == [0, 1, 2]

    run(ScriptedInLoop(script), scenario)


def test_a_timeout_that_passes_while_the_reader_rests_ends_the_stream() -> None:
    """It cancels the task of the generator, which waits for its reader."""
    ended = threading.Event()

    async def script() -> AsyncGenerator[Part, None]:
        try:
            async with asyncio.timeout(0.01):
                for index in range(3):
                    yield part(index)
        finally:
            ended.set()

    async def scenario(engine: Engine) -> None:
        ended.clear()
        stream = engine.stream("m", X)
        await anext(stream)
        await until_in_loop(ended.is_set)
        with pytest.raises(ModelError, match="TimeoutError"):
            await anext(stream)

    run(ScriptedInLoop(script), scenario)


def test_what_two_timeouts_bring_while_the_reader_rests_comes_in_their_order() -> None:
    ended = threading.Event()

    async def script() -> AsyncGenerator[Part, None]:
        try:
            async with asyncio.timeout(None) as outer:
                try:
                    async with asyncio.timeout(0):
                        yield part(0)
                except TimeoutError:
                    outer.reschedule(0)
                    yield part(1)
        finally:
            ended.set()

    async def scenario(engine: Engine) -> None:
        ended.clear()
        stream = engine.stream("m", X)
        await anext(stream)
        await until_in_loop(ended.is_set)
        assert (await anext(stream))["y"][0, 0] == 1
        with pytest.raises(ModelError, match="TimeoutError"):
            await anext(stream)

    run(ScriptedInLoop(script), scenario)


def test_a_stream_that_is_left_leaves_nothing_to_the_garbage_collector() -> None:
    """It comes rarely, and a part may be large."""
    parts: list[weakref.ref[Array]] = []

    async def script() -> AsyncGenerator[Part, None]:
        while True:
            made = part(0)
            parts.append(weakref.ref(made["y"]))
            yield made

    async def scenario(engine: Engine) -> None:
        stream = engine.stream("m", X)
        await anext(stream)
        await stream.aclose()
        await until_in_loop(lambda: not engine.loaded("m").outstanding)

    gc.collect()
    gc.disable()
    try:
        run(ScriptedInLoop(script), scenario)
        assert parts
        assert all(one() is None for one in parts)
    finally:
        gc.enable()


def test_a_finally_may_await() -> None:
    ended = threading.Event()

    async def script() -> AsyncGenerator[Part, None]:
        try:
            yield part(0)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def scenario(engine: Engine) -> None:
        for asked in (1, 2):  # left between two parts, and while it waits for one
            ended.clear()
            stream = engine.stream("m", X)
            await anext(stream)
            following = asyncio.ensure_future(anext(stream)) if asked == 2 else None
            await asyncio.sleep(0)
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await stream.aclose()
            await until_in_loop(lambda: not engine.loaded("m").outstanding)
            assert ended.is_set()

    run(ScriptedInLoop(script), scenario)


def test_a_generator_that_does_not_end_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def script() -> Generator[Part, None, None]:
        try:
            yield part(0)
        finally:
            yield part(1)

    async def script_in_loop() -> AsyncGenerator[Part, None]:
        try:
            yield part(0)
        finally:
            yield part(1)

    async def scenario(engine: Engine) -> None:
        stream = engine.stream("m", X)
        await anext(stream)
        await stream.aclose()
        await until_in_loop(lambda: not engine.loaded("m").outstanding)

    for model in (Scripted(script), ScriptedInLoop(script_in_loop)):
        caplog.clear()
        run(model, scenario)
        assert "a model failed while its stream was closed" in caplog.text


def test_a_step_that_lasts_beyond_the_deadline_keeps_its_place_until_it_returns() -> None:
    gate, is_closed = threading.Event(), threading.Event()

    def script() -> Generator[Part, None, None]:
        try:
            gate.wait()
            yield part(0)
        finally:
            is_closed.set()

    async def scenario(engine: Engine) -> None:
        with pytest.raises(DeadlineExceeded):
            await anext(engine.stream("m", X, timeout_seconds=0.05))
        assert engine.loaded("m").outstanding == 1
        with pytest.raises(Overloaded):
            await anext(engine.stream("m", X))
        gate.set()
        await until_in_loop(lambda: not engine.loaded("m").outstanding)
        assert is_closed.is_set()

    run(Scripted(script), scenario, max_streams=1)


def test_a_stream_that_is_left_while_its_step_waits_for_the_thread_computes_nothing() -> None:
    began, may_go_on = threading.Event(), threading.Event()
    parts: list[int] = []

    def script() -> Generator[Part, None, None]:
        began.set()
        may_go_on.wait(seconds_left())
        parts.append(len(parts))
        yield part(0)

    async def scenario(engine: Engine) -> None:
        asked = [asyncio.ensure_future(anext(engine.stream("m", X))) for _ in range(3)]
        await until_in_loop(began.is_set)
        with pytest.raises(DeadlineExceeded):
            await anext(engine.stream("m", X, timeout_seconds=0.01))
        for one in asked[1:]:
            one.cancel()
        await asyncio.wait(asked[1:])
        may_go_on.set()
        await asked[0]
        await until_in_loop(lambda: engine.loaded("m").outstanding <= 1)
        assert parts == [0]

    run(Scripted(script), scenario)


def test_a_part_of_another_type_is_an_error_of_the_model() -> None:
    def script() -> Generator[Part, None, None]:
        yield {"y": np.zeros((1, 2), np.int64)}

    async def scenario(engine: Engine) -> None:
        with pytest.raises(ModelError, match=r"gave INT64 \[1, 2\] as 'y', which it declares as y FP32"):
            await anext(engine.stream("m", X))

    run(Scripted(script), scenario)


@pytest.mark.parametrize("error", [ValueError("secret"), SystemExit(1), StopAsyncIteration(), KeyError("x")])
def test_an_unexpected_exception_is_an_error_of_the_model(error: BaseException) -> None:
    def script() -> Generator[Part, None, None]:
        yield part(0)
        raise error

    async def scenario(engine: Engine) -> None:
        stream = engine.stream("m", X)
        await anext(stream)
        with pytest.raises(ModelError, match=f"the model failed with {type(error).__name__}"):
            await anext(stream)

    run(Scripted(script), scenario)


def test_where_no_thread_can_be_started_a_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def served() -> None:
        config = ServerConfig()
        async with Engine(objects={"m": DoublingInParts()}, config=config) as engine:
            loaded = engine.loaded("m")
            assert loaded.streams is not None
            monkeypatch.setattr(loaded.streams._pool, "_workers", [])
            monkeypatch.setattr(loaded.streams._pool, "_idle", [])
            monkeypatch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(Overloaded, match="the system refuses to start a thread"):
                await anext(engine.stream("m", X))
            monkeypatch.undo()
            assert not loaded.outstanding

    asyncio.run(asyncio.wait_for(served(), seconds_left()))


def test_an_engine_that_closes_ends_streams_that_are_left_open() -> None:
    left: list[AsyncGenerator[Part, None]] = []

    async def scenario(engine: Engine) -> None:
        left.append(engine.stream("m", {"x": np.zeros((9, 2), np.float32)}))
        await anext(left[0])

    async def served() -> None:
        config = ServerConfig(drain_seconds=0.1)
        async with Engine(objects={"m": DoublingInParts()}, config=config) as engine:
            await scenario(engine)
        with pytest.raises(Unavailable, match="unloaded before its answer was complete"):
            await anext(left[0])

    asyncio.run(asyncio.wait_for(served(), seconds_left()))
