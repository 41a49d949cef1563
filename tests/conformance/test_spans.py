"""What a collector is sent of calls, by every door: spans by value, read by OpenTelemetry's own protos."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.config import BatchingPolicy, CachePolicy, DefaultPolicy, ModelConfig, Tracing
from headrace.frontends.service import Service
from headrace.server.server import grpc_methods, http_routes
from headrace.serving.engine import Engine
from headrace.telemetry.tracing import Describer, Routes, Tracer
from tests.models import Doubling
from tests.outcome_doors import Ask, World, world
from tests.trace_collector import Collector, Span, collecting
from tests.unit.frontends.transport.wire import GRPC, Event, Wire, body
from tests.waiting import until_in_loop

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", b"rojo=1, congo=2")]
NOT_SAMPLED = [(b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())]
PATHS = {
    "REST": "/v1/models/m:predict",
    "REST, V2": "/v2/models/m/infer",
    "gRPC": "/inference.GRPCInferenceService/ModelInfer",
    "gRPC, TensorFlow": "/tensorflow.serving.PredictionService/Predict",
    "gRPC stream": "/inference.GRPCInferenceService/ModelStreamInfer",
    "grpcio": "/inference.GRPCInferenceService/ModelInfer",
}


class Traced(World):
    """A world whose calls come with headers.

    Attributes:
        sent: The headers.
    """

    sent: list[tuple[bytes, bytes]] = SAMPLED

    async def send(
        self, path: str, events: list[Event], headers: list[tuple[bytes, bytes]], method: str = "POST"
    ) -> Wire:
        """One request over ASGI, with them."""
        return await super().send(path, events, [*headers, *self.sent], method)


def trace(engine: Engine, collector: Collector, protocol: str = "grpc", **settings: object) -> Tracer:
    service = Service(engine)
    config = Tracing(endpoint=collector.endpoint, protocol=protocol, **settings)  # type: ignore[arg-type]
    routes = Routes(route.pattern for route in http_routes(service))
    describer = Describer(routes, (method.path for method in grpc_methods(service)))
    tracer = Tracer.start(config, engine.outcomes, describer, "1.2.3")
    assert tracer is not None
    return tracer


def spans_of(
    scenario: Callable[[Traced], Awaitable[None]],
    protocol: str = "grpc",
    models: dict[str, Doubling] | None = None,
    config: ModelConfig | None = None,
    **settings: object,
) -> list[Span]:
    """What a collector has got when a scenario is over."""

    @asynccontextmanager
    async def made() -> AsyncIterator[Traced]:
        engine = Engine.from_objects(models or {"m": Doubling()})
        if config is not None:
            engine._object_config = config
        async with engine:
            yield Traced(engine, threading.Event())

    async def whole() -> None:
        async with made() as doors:
            tracer = trace(doors.engine, collector, protocol, **settings)
            await scenario(doors)
            assert await asyncio.to_thread(tracer.close, 30.0)

    with collecting(protocol) as collector:
        asyncio.run(whole())
    return collector.spans


def the(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def check_tree(spans: list[Span], name: str, parent_id: str = PARENT) -> Span:
    """One computed request: its span, its three parts, and its batch's span; they link each other."""
    root, batch = the(spans, name), the(spans, "batch m")
    assert (root.trace_id, root.parent_id, root.kind) == (TRACE, parent_id, 2)
    parts = [the(spans, part) for part in ("queue", "batch", "compute")]
    assert all((part.trace_id, part.parent_id, part.kind) == (TRACE, root.span_id, 1) for part in parts)
    assert [part.end for part in parts[:2]] == [part.start for part in parts[1:]]
    assert root.start <= parts[0].start <= parts[0].end <= parts[1].end < parts[2].end <= root.end
    assert (batch.parent_id, batch.kind, batch.links) == ("", 1, [(TRACE, root.span_id)])
    assert batch.trace_id != TRACE
    assert parts[2].links == [(batch.trace_id, batch.span_id)]
    assert (batch.start, batch.end) == (parts[0].end, parts[2].end)
    return root


ANSWERED = {
    "headrace.model.name": "m",
    "headrace.model.version": 1,
    "headrace.rows": 2,
    "headrace.answered_by": "model",
    "headrace.batch.rows": 2,
    "headrace.batch.requests": 1,
}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("how", ["REST", "REST, V2"])
def test_a_request_over_rest(how: str, protocol: str) -> None:
    spans = spans_of(lambda made: made.ask(how, Ask(rows=2)), protocol)
    route = {"REST": "/v1/models/{model}:predict", "REST, V2": "/v2/models/{model}/infer"}[how]
    root = check_tree(spans, f"POST {route}")
    assert len(spans) == 5
    assert root.state == "rojo=1,congo=2"
    assert root.flags & 0x300 == 0x300, "that the parent is another process's"
    assert root.status == (0, "")
    assert root.resource["service.name"] == "headrace"
    assert root.resource["service.version"] == "1.2.3"
    request_id = root.attributes.pop("headrace.request_id")
    assert len(request_id) == 32
    assert root.attributes.pop("http.request.body.size") > 20
    assert root.attributes.pop("http.response.body.size") > 20
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": route,
        "url.path": PATHS[how],
        "url.scheme": "http",
        "http.response.status_code": 200,
        "client.address": "10.1.2.3",
        "client.port": 4567,
        **ANSWERED,
    }


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("how", ["gRPC", "gRPC, TensorFlow"])
def test_a_request_over_grpc(how: str, protocol: str) -> None:
    spans = spans_of(lambda made: made.ask(how, Ask(rows=2)), protocol)
    root = check_tree(spans, PATHS[how][1:])
    assert len(spans) == 5
    del root.attributes["headrace.request_id"]
    assert root.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": PATHS[how][1:],
        "rpc.response.status_code": "OK",
        "client.address": "10.1.2.3",
        "client.port": 4567,
        **ANSWERED,
    }


def test_a_stream_is_a_span_and_each_message_a_child_of_it() -> None:
    spans = spans_of(lambda made: made.ask("gRPC stream", Ask(rows=2)))
    name = PATHS["gRPC stream"][1:]
    stream = next(span for span in spans if span.parent_id == PARENT)
    rest = [span for span in spans if span is not stream]
    assert (stream.name, stream.trace_id, stream.kind) == (name, TRACE, 2)
    assert "headrace.model.name" not in stream.attributes
    of_message = check_tree(rest, name, stream.span_id)
    assert of_message.attributes["headrace.rows"] == 2


@pytest.mark.parametrize(("sent", "parent_id"), [([], ""), (SAMPLED, PARENT)], ids=["alone", "continued"])
def test_grpcio_s_calls_are_traced_as_well(sent: list[tuple[bytes, bytes]], parent_id: str) -> None:
    async def whole() -> None:
        async with world(by_grpcio=True, is_observed=False) as made:
            made.metadata = [(name.decode(), value.decode()) for name, value in sent]
            tracer = trace(made.engine, collector)
            await made.ask("grpcio", Ask(rows=1))
            assert await asyncio.to_thread(tracer.close, 30.0)

    with collecting("grpc") as collector:
        asyncio.run(whole())
    root = the(collector.spans, PATHS["grpcio"][1:])
    assert (root.parent_id, root.kind) == (parent_id, 2)
    assert root.attributes["client.address"] == "127.0.0.1"
    assert len(collector.spans) == 5
    if parent_id:
        assert check_tree(collector.spans, root.name).state == "rojo=1,congo=2"


@pytest.mark.parametrize(
    ("how", "ask", "status", "kind", "is_fault"),
    [
        ("REST", Ask(is_broken=True), 400, "InvalidRequest", False),
        ("REST, V2", Ask("nobody"), 404, "NotFound", False),
        ("gRPC", Ask(is_broken=True), "INVALID_ARGUMENT", "InvalidRequest", False),
        ("gRPC, TensorFlow", Ask("nobody"), "NOT_FOUND", "NotFound", False),
        ("REST", Ask(value=-1.0), 500, "ModelError", True),
        ("gRPC", Ask(value=-1.0), "INTERNAL", "ModelError", True),
    ],
)
def test_an_error_is_recorded_and_is_the_span_s_status_only_if_it_is_this_server_s_fault(
    how: str, ask: Ask, status: int | str, kind: str, is_fault: bool
) -> None:
    spans = spans_of(lambda made: made.ask(how, ask))
    root = next(span for span in spans if span.parent_id == PARENT)
    key = "http.response.status_code" if how.startswith("REST") else "rpc.response.status_code"
    assert root.attributes[key] == status
    assert root.attributes["error.type"] == kind
    assert root.status[0] == (2 if is_fault else 0)
    assert ("ValueError" in root.status[1]) == is_fault
    assert "headrace.answered_by" not in root.attributes
    if is_fault:
        assert check_tree(spans, root.name).attributes["headrace.model.name"] == "m"
    else:
        assert len(spans) == 1


@pytest.mark.parametrize(
    ("path", "headers", "name", "attributes"),
    [
        ("/nothing/at/all", [], "POST", {"http.response.status_code": 404}),
        ("/v2/health/live", [], "POST", {"http.response.status_code": 405}),
        ("/x.Y/Z", GRPC, "grpc", {"rpc.method": "_OTHER", "rpc.method_original": "x.Y/Z"}),
    ],
)
def test_what_is_not_served_has_no_name_of_its_own(
    path: str, headers: list[tuple[bytes, bytes]], name: str, attributes: dict[str, object]
) -> None:
    async def scenario(made: Traced) -> None:
        await made.send(path, body(b""), headers)

    (span,) = spans_of(scenario)
    assert span.name.split(" /")[0] == name
    assert attributes.items() <= span.attributes.items()


def test_a_refusal_at_the_door_is_a_span() -> None:
    async def scenario(made: Traced) -> None:
        made.application.bodies.call_bytes = made.application.bodies.limits.max_inflight_bytes + 1
        made.application.bodies.hold_of_stream(1)
        await made.ask("gRPC", Ask())
        made.application.bodies.release(1)

    (span,) = spans_of(scenario)
    assert span.attributes["error.type"] == "Overloaded"
    assert span.attributes["rpc.response.status_code"] == "UNAVAILABLE"


def test_an_answer_from_the_cache_has_no_parts() -> None:
    async def scenario(made: Traced) -> None:
        await made.ask("REST", Ask())
        await made.ask("REST", Ask())

    config = ModelConfig(cache=CachePolicy(size_bytes=1_000_000))
    spans = spans_of(scenario, config=config)
    roots = [span for span in spans if span.kind == 2]
    assert [root.attributes["headrace.answered_by"] for root in roots] == ["model", "cache"]
    assert sum(span.name == "compute" for span in spans) == 1
    assert "headrace.batch.rows" not in roots[1].attributes


def test_a_default_says_who_answered() -> None:
    gate = threading.Event()
    gate.set()

    async def scenario(made: Traced) -> None:
        gate.clear()
        await made.ask("REST", Ask(rows=2))
        gate.set()

    config = ModelConfig(
        default=DefaultPolicy(values={"y": 7.0}, after_seconds=0.01),
        batching=BatchingPolicy(instances=1, inline_seconds=0.0),
    )
    (root,) = spans_of(scenario, models={"m": Doubling(gate.wait)}, config=config)
    expected = {
        "headrace.model.name": "m",
        "headrace.answered_by": "default",
        "headrace.rows": 2,
        "http.response.status_code": 200,
    }
    assert expected.items() <= root.attributes.items()
    assert root.status == (0, "")


def test_a_batch_is_one_span_that_links_all_its_requests() -> None:
    gate = threading.Event()
    gate.set()
    config = ModelConfig(batching=BatchingPolicy(instances=1, inline_seconds=0.0))
    model = Doubling(gate.wait)

    async def scenario(made: Traced) -> None:
        gate.clear()
        loaded = made.engine.loaded("m")
        made.sent = NOT_SAMPLED
        first = asyncio.create_task(made.ask("REST", Ask()))
        await until_in_loop(lambda: loaded.outstanding and not loaded.batcher.queued_rows)
        made.sent = SAMPLED
        others = [asyncio.create_task(made.ask(how, Ask(rows=2))) for how in ("REST", "gRPC", "REST, V2")]
        await until_in_loop(lambda: loaded.batcher.queued_rows == 6)
        made.sent = NOT_SAMPLED
        last = asyncio.create_task(made.ask("REST", Ask()))
        await until_in_loop(lambda: loaded.batcher.queued_rows == 7)
        gate.set()
        await asyncio.gather(first, *others, last)

    spans = spans_of(scenario, models={"m": model}, config=config)
    batch = the(spans, "batch m")
    roots = [span for span in spans if span.kind == 2]
    assert len(roots) == 3
    assert sorted(batch.links) == sorted((TRACE, root.span_id) for root in roots)
    assert batch.attributes["headrace.batch.rows"] == 7
    assert batch.attributes["headrace.batch.requests"] == 4
    computed = [span for span in spans if span.name == "compute"]
    assert {tuple(span.links) for span in computed} == {((batch.trace_id, batch.span_id),)}


def test_what_a_caller_does_not_record_is_not_recorded_here() -> None:
    async def scenario(made: Traced) -> None:
        made.sent = NOT_SAMPLED
        await made.ask("REST", Ask())
        made.sent = [(b"traceparent", b"no such thing")]
        await made.ask("REST", Ask())

    spans = spans_of(scenario)
    (root,) = [span for span in spans if span.kind == 2]
    assert (root.parent_id, root.trace_id != TRACE) == ("", True)


def test_only_so_many_a_second_are_recorded_whatever_callers_say() -> None:
    async def scenario(made: Traced) -> None:
        for _ in range(40):
            await made.ask("REST", Ask())

    spans = spans_of(scenario, max_traces_per_second=1)
    assert 1 <= sum(span.kind == 2 for span in spans) < 40


def test_without_a_caller_s_word_the_rate_decides() -> None:
    async def scenario(made: Traced) -> None:
        made.sent = []
        for _ in range(20):
            await made.ask("gRPC", Ask())

    assert spans_of(scenario, sample_rate=0.0) == []


def test_a_caller_who_leaves_is_a_span() -> None:
    gate = threading.Event()
    gate.set()

    async def scenario(made: Traced) -> None:
        gate.clear()
        task = asyncio.create_task(made.ask("REST", Ask()))
        await until_in_loop(lambda: made.engine.loaded("m").outstanding == 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        gate.set()

    config = ModelConfig(batching=BatchingPolicy(instances=1, inline_seconds=0.0))
    spans = spans_of(scenario, models={"m": Doubling(gate.wait)}, config=config)
    root = the(spans, "POST /v1/models/{model}:predict")
    assert root.attributes["error.type"] == "Cancelled"
    assert json.dumps(root.attributes)
