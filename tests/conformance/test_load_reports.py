"""Every answer of the server's ports says how loaded it is, by whatever door, once that is to be said."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from copy import copy

import pytest

from headrace.batching.capacity import LoadReport
from tests import orca
from tests.outcome_doors import World, world
from tests.unit.frontends.transport.wire import GRPC, Wire, body, message

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
LIVE = "/inference.GRPCInferenceService/ServerLive"
NAMES = (b"endpoint-load-metrics", b"endpoint-load-metrics-bin")
REPORT = LoadReport(0.5, 100.0, 0.25)
FIELDS = {"application_utilization": 0.5, "rps_fractional": 100.0, "eps": 0.25}
INSTANCES = b'{"instances": [[1, 2]]}'
INPUTS = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'

CALLS = {
    "REST": ("/v1/models/m:predict", "POST", body(INSTANCES), []),
    "REST, V2": ("/v2/models/m/infer", "POST", body(INPUTS), []),
    "REST, refused": ("/v1/models/m:predict", "POST", body(b"{"), []),
    "REST, no such model": ("/v1/models/x:predict", "POST", body(INSTANCES), []),
    "REST, no such path": ("/nothing", "POST", body(b""), []),
    "REST, wrong method": ("/v2/models/m/infer", "GET", body(b""), []),
    "REST, without a body": ("/v2/health/ready", "HEAD", body(b""), []),
    "gRPC": (LIVE, "POST", body(message(b"")), GRPC),
    "gRPC, with a name": (LIVE, "POST", body(message(b"")), [*GRPC, (b"x-request-id", b"a")]),
    "gRPC, refused": (INFER, "POST", body(message(b"\xff")), GRPC),
    "gRPC, TensorFlow, refused": (PREDICT, "POST", body(message(b"\xff")), GRPC),
    "gRPC, no such method": ("/x.Y/Z", "POST", body(message(b"")), GRPC),
    "gRPC stream": (STREAM, "POST", body(b""), GRPC),
    "gRPC stream, refused": (STREAM, "POST", body(b"\x00"), GRPC),
}


def run(scenario: Callable[[World], Awaitable[None]], **how: bool) -> None:
    async def whole() -> None:
        async with world(**how) as made:  # type: ignore[arg-type]
            await scenario(made)

    asyncio.run(whole())


def reports(wire: Wire) -> list[tuple[bytes, bytes]]:
    return [(name, value) for event in wire.sent for name, value in event.get("headers", ()) if name in NAMES]


def expect_report(how: str, wire: Wire) -> None:
    ((name, value),) = reports(wire)
    if how.startswith("REST"):
        assert name == b"endpoint-load-metrics"
        assert json.loads(value.removeprefix(b"JSON ")) == FIELDS
    else:
        assert name == b"endpoint-load-metrics-bin"
        assert orca.parsed(b64decode(value, validate=True)) == FIELDS


@pytest.mark.parametrize("how", CALLS)
def test_every_answer_and_every_error_has_the_last_report(how: str) -> None:
    path, method, events, headers = CALLS[how]

    async def scenario(made: World) -> None:
        assert reports(await made.send(path, list(events), headers, method)) == []
        whole, made.application = made.application, copy(made.application)  # as each generation of h2corn's
        whole.load.report(LoadReport(9.0, 9.0, 9.0))
        whole.load.report(REPORT)
        expect_report(how, await made.send(path, list(events), headers, method))

    run(scenario)


@pytest.mark.parametrize("payload", [b"", b"\xff"], ids=["answered", "refused"])
@pytest.mark.parametrize("path", [INFER, STREAM, LIVE])
def test_it_is_in_the_trailers_of_grpcio(path: str, payload: bytes) -> None:
    async def scenario(made: World) -> None:
        assert await asyncio.to_thread(orca.trailed, made.port, path, payload) is None
        made.application.load.report(REPORT)
        assert await asyncio.to_thread(orca.trailed, made.port, path, payload) == FIELDS

    run(scenario, by_grpcio=True)
