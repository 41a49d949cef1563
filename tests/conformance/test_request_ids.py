"""What names a call comes back with its answer, by whatever door, and can harm nobody's log."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping

import grpc
import pytest
from grpc import aio

from headrace.base.logs import CALL, set_up
from headrace.base.tensors import Array, Tensors
from headrace.base.trace_context import Headers, TraceContext
from headrace.batching.request import Origin
from headrace.config import BatchingPolicy
from headrace.frontends.calls import HttpCall
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Outcome
from tests.calling import of
from tests.models import Doubling
from tests.outcome_doors import ASGI_DOORS, Ask, World, world
from tests.unit.frontends.transport.wire import GRPC, Event, Wire, body, message
from tests.waiting import until_in_loop

INFER = "/inference.GRPCInferenceService/ModelInfer"
Notes = list[tuple[bytes, bytes]]
NAME = b"x-request-id"
REST = "/v1/models/m:predict"
GOOD_BODY = b'{"instances": [[1, 2]]}'


def run(scenario: Callable[[World], Awaitable[None]], **how: bool) -> None:
    async def whole() -> None:
        async with world(**how) as made:  # type: ignore[arg-type]
            await scenario(made)

    asyncio.run(whole())


def said(wire: Wire) -> list[bytes]:
    return [value for event in wire.sent for name, value in event.get("headers", ()) if name.lower() == NAME]


CALLS = {
    "REST": (REST, "POST", body(GOOD_BODY), []),
    "REST, refused": (REST, "POST", body(b"{"), []),
    "REST, no such model": ("/v1/models/x:predict", "POST", body(GOOD_BODY), []),
    "REST, no such path": ("/nothing", "POST", body(b""), []),
    "REST, wrong method": ("/v2/models/m/infer", "GET", body(b""), []),
    "REST, without a body": ("/v2/health/live", "GET", body(b""), []),
    "gRPC, refused": (INFER, "POST", body(message(b"\xff")), GRPC),
    "gRPC, no such method": ("/x.Y/Z", "POST", body(message(b"")), GRPC),
    "gRPC, without models": ("/inference.GRPCInferenceService/ServerLive", "POST", body(message(b"")), GRPC),
    "gRPC stream": ("/inference.GRPCInferenceService/ModelStreamInfer", "POST", body(b""), GRPC),
}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("is_observed", [False, True])
def test_a_name_that_comes_goes_out_with_the_answer_and_the_error(how: str, is_observed: bool) -> None:
    path, method, events, headers = CALLS[how]

    async def scenario(made: World) -> None:
        wire = await made.send(path, list(events), [*headers, (NAME, b"a-1.b:2/3")], method)
        assert said(wire) == [b"a-1.b:2/3"]
        if is_observed:
            assert made.given[-1].request_id == "a-1.b:2/3"

    run(scenario, is_observed=is_observed)


@pytest.mark.parametrize("how", CALLS)
def test_without_a_name_there_is_none_unless_somebody_wants_calls_to_have_one(how: str) -> None:
    path, method, events, headers = CALLS[how]

    async def scenario(made: World) -> None:
        assert said(await made.send(path, list(events), headers, method)) == []
        made.engine.outcomes.observe(lambda _: None, names=True)
        (name,) = said(await made.send(path, list(events), headers, method))
        assert re.fullmatch(rb"[0-9a-f]{32}", name)
        assert made.given[-1].request_id == made.given[-1].id.hex() == name.decode()

    run(scenario)


@pytest.mark.parametrize(
    "name", [b"", b"a b", b'a"b', b"a\nb", b"a\x00", b"x" * 129, "ä".encode(), b"\xff", b"{}", b"a;b"]
)
@pytest.mark.parametrize("how", ["REST", "REST, without a body", "gRPC, without models"])
def test_a_name_that_could_harm_a_log_is_as_if_there_were_none(name: bytes, how: str) -> None:
    path, method, events, headers = CALLS[how]

    async def scenario(made: World) -> None:
        assert said(await made.send(path, list(events), [*headers, (NAME, name)], method)) == []
        made.engine.outcomes.observe(lambda _: None, names=True)
        (given,) = said(await made.send(path, list(events), [*headers, (NAME, name)], method))
        assert re.fullmatch(rb"[0-9a-f]{32}", given)

    run(scenario)


def test_a_default_says_who_answered_and_keeps_the_name() -> None:
    call = HttpCall("POST", "/", {})
    call.echo(b"one")
    call.answered_by(Origin("m", 1, is_default=True))
    call.answered_by(Origin("m", 2, is_default=True))
    assert call.notes == ((NAME, b"one"), (b"headrace-answered-by", b"default m/2"))
    assert call.names == ((NAME, b"one"),)


@pytest.mark.parametrize("is_good", [True, False])
def test_grpcio_says_it_in_trailing_metadata(is_good: bool) -> None:
    async def scenario(made: World) -> None:
        async with aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
            path = "/inference.GRPCInferenceService/ServerLive" if is_good else INFER
            call = channel.unary_unary(path)(b"" if is_good else b"\xff", metadata=[("x-request-id", "mine")])
            try:
                await call
            except grpc.RpcError:
                assert not is_good
            trailing = dict(await call.trailing_metadata())
            assert trailing["x-request-id"] == "mine"
        assert made.given[-1].request_id == "mine"

    run(scenario, by_grpcio=True)


class Every:
    """Samples the calls whose headers have a mark."""

    def sample(self, headers: Headers) -> TraceContext | None:
        return TraceContext(None, is_recorded=True) if (b"mark", b"1") in headers else None

    def child(self, context: TraceContext) -> TraceContext | None:
        return context.child()


@pytest.mark.parametrize("how", ["REST", "gRPC, without models"])
def test_a_record_is_made_of_those_calls_only_that_are_sampled(how: str) -> None:
    path, method, events, headers = CALLS[how]
    given: list[Outcome] = []

    async def scenario(made: World) -> None:
        made.engine.outcomes.observe_sampled(given.append, Every())
        for mark in (b"0", b"1", b"0"):
            await made.send(path, list(events), [*headers, (b"mark", mark)], method)
        (one,) = given
        assert one.trace is not None
        assert (one.path, one.method) == (path, method)
        await made.ask("in process", Ask())  # samplers are asked of calls from the network
        assert len(given) == 1
        assert made.tally().total() == 4

    run(scenario, is_observed=False)


def test_messages_of_a_sampled_stream_are_sampled_with_it_as_its_children() -> None:
    given: list[Outcome] = []

    class All(Every):
        def sample(self, headers: Headers) -> TraceContext | None:
            return TraceContext(None, is_recorded=True)

    async def scenario(made: World) -> None:
        made.engine.outcomes.observe_sampled(given.append, All())
        await made.ask("gRPC stream", Ask())
        first, stream = (one.trace for one in given)
        assert first is not None
        assert stream is not None
        assert (first.trace_id, first.parent_id) == (stream.trace_id, stream.span_id)

    run(scenario, is_observed=False)


@pytest.mark.parametrize("door", ASGI_DOORS)
def test_log_lines_inside_of_a_call_can_name_it_and_its_trace_and_none_after_it(door: str) -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}-00".encode()
    seen: list[Mapping[str, str]] = []

    class Traced(World):
        async def send(self, path: str, events: list[Event], headers: Notes, method: str = "POST") -> Wire:
            return await super().send(path, events, [*headers, (b"traceparent", parent)], method)

    def look() -> None:
        call = CALL.get()
        if call is not None:  # that is none while the model is warmed up
            seen.append(call.log_fields)

    async def scenario() -> None:
        policy = BatchingPolicy(inline_seconds=1.0, instances=1)
        async with Engine.from_objects({"m": Doubling(look)}, batching=policy) as engine:
            engine.outcomes.observe(lambda _: None, names=True)
            await Traced(engine, threading.Event()).ask(door, Ask())
        assert seen
        assert all(one["trace_id"] == "1" * 32 and one["span_id"] == "2" * 16 for one in seen)
        assert all(re.fullmatch("[0-9a-f]{32}", one["request_id"]) for one in seen)
        call = CALL.get()
        assert call is None or call.log_fields == {}

    asyncio.run(scenario())


class Failing(Doubling):
    """Fails once it is asked, and keeps whose name was in force then, and whether several asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.begun, self.gate = False, threading.Event(), threading.Event()
        self.seen: list[tuple[bool, str]] = []
        self.threads: set[int] = set()

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        if not self.is_asked:  # it is being warmed up
            return super().predict(inputs, signature)
        self.begun.set()
        assert self.gate.wait(120)
        self.threads.add(threading.get_ident())
        self.seen.append((len(inputs["x"]) > 1, name_in_force()))
        raise RuntimeError("no matter what is asked")


def name_in_force() -> str:
    call = CALL.get()
    return "" if call is None else call.log_fields["request_id"]


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The names in force when it is logged that a model has failed."""
    names: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.append(name_in_force())

    logger, keeping = logging.getLogger("headrace.batching.batch_queue"), Keeping()
    logger.addHandler(keeping)
    yield names
    logger.removeHandler(keeping)


@pytest.mark.parametrize("is_inline", [False, True])
@pytest.mark.parametrize("door", ASGI_DOORS)
def test_what_is_logged_names_the_request_that_a_model_is_called_for_alone(
    door: str, is_inline: bool, logged: list[str]
) -> None:
    """In its own thread or the serving one: a batch that fails is called once more for each request."""
    model = Failing()

    async def scenario() -> None:
        policy = BatchingPolicy(inline_seconds=1.0 if is_inline else 0.0, instances=1)
        async with Engine.from_objects({"m": model}, batching=policy) as engine:
            given: list[Outcome] = []
            engine.outcomes.observe(given.append, names=True)
            made = World(engine, threading.Event())
            if is_inline:
                model.gate.set()
            await made.ask(door, Ask())
            given.clear()
            model.is_asked = True
            calls = []
            if not is_inline:
                calls = [asyncio.create_task(made.ask(door, Ask()))]
                await until_in_loop(model.begun.is_set)
            calls += [asyncio.create_task(made.ask(door, Ask())) for _ in range(2)]
            if not is_inline:
                await until_in_loop(lambda: of(engine).queued_rows == 2)
                model.gate.set()
            await asyncio.gather(*calls)
            names = sorted(outcome.request_id for outcome in given if outcome.asked is not None)
        assert (threading.get_ident() in model.threads) == is_inline
        assert model.seen.count((True, "")) == 1, "two together"
        assert sorted(name for many, name in model.seen if not many) == names == sorted(logged)
        assert len(names) == len(calls)

    asyncio.run(scenario())


def test_a_log_line_gets_the_fields_after_equal_lines_were_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Calls:
        count = 0

        @property
        def log_fields(self) -> dict[str, str]:
            self.count += 1
            return {"trace_id": f"t{self.count}"}

    before = logging.getLogger().handlers[:]
    token = CALL.set(Calls())
    try:
        set_up("text", "info")
        for _ in range(50):
            logging.getLogger("headrace.x").warning("the same")
    finally:
        CALL.reset(token)
        logging.basicConfig(handlers=before, force=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "the same" in line]
    assert 5 <= len(lines) < 50, "lines that differ in their trace alone are equal"
    assert "trace_id=t1" in lines[0]
