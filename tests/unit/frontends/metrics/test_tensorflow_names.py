"""TensorFlow Serving's own metrics: names, labels, values and buckets exactly as its source has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest, NotFound, Overloaded
from headrace.frontends.calls import GrpcCall, HttpCall
from headrace.frontends.metrics.tensorflow_names import TensorFlowMetrics, model_name
from headrace.frontends.tfserving.grpc import grpc_methods
from headrace.frontends.tfserving.rest import http_routes
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import protos
from tests.unit.frontends.oip.doubles import echo, run
from tests.unit.frontends.tfserving.doubles import ServiceDouble

# servables/tensorflow/util.cc of TensorFlow Serving: Buckets::Exponential(10, 1.8, 33), as absl prints it.
FIRST_LIMITS = ["10", "18", "32.4", "58.32", "104.976", "188.957", "340.122", "612.22", "1102", "1983.59"]
LAST_LIMITS = ["4.55172e+08", "8.19309e+08", "1.47476e+09", "+Inf"]


def metrics() -> TensorFlowMetrics:
    return TensorFlowMetrics(lambda model: model in {"echo", "empty", 'a"b\\'})


def series(measured: TensorFlowMetrics) -> dict[str, float]:
    lines = [line for line in "".join(measured.pieces()).splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def outcome(awaitable: Awaitable[object]) -> object:
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001 - the outcome is what is asked for
        return error


def ask(measured: TensorFlowMetrics, handler: Any, model: str, api: str = "Predict") -> object:
    return asyncio.run(outcome(measured.measured(handler, lambda name: name, api, "GRPC")(model)))


def ending(error: BaseException | None) -> Any:
    async def handler(_: object) -> str:
        if error is not None:
            raise error
        return "answer"

    return handler


def test_the_types_are_those_that_its_exporter_writes() -> None:
    assert "".join(metrics().pieces()).splitlines() == [
        "# TYPE :tensorflow:serving:request_count counter",
        "# TYPE :tensorflow:serving:request_latency histogram",
        "# TYPE :tensorflow:serving:runtime_latency histogram",
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "OK"),
        (InvalidRequest("no"), "INVALID_ARGUMENT"),
        (NotFound("no"), "NOT_FOUND"),
        (Overloaded("no"), "UNAVAILABLE"),
        (ValueError("a bug"), "INTERNAL"),
    ],
)
def test_requests_count_by_the_name_of_their_code(error: Exception | None, status: str) -> None:
    measured = metrics()
    for _ in range(3):
        assert ask(measured, ending(error), "echo") == (error or "answer")
    counted = series(measured)
    assert counted[f':tensorflow:serving:request_count{{model_name="echo",status="{status}"}}'] == 3
    latency = ':tensorflow:serving:request_latency_count{model_name="echo",API="Predict",entrypoint="GRPC"}'
    assert counted.get(latency, 0) == (3 if error is None else 0), "latencies are of what was answered"


def test_a_caller_that_leaves_is_cancelled() -> None:
    measured = metrics()

    async def leave() -> None:
        started = asyncio.Event()

        async def handler(_: object) -> None:
            started.set()
            await asyncio.Event().wait()

        asked = asyncio.ensure_future(measured.measured(handler, str, "Predict", "GRPC")("echo"))
        await started.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(leave())
    assert series(measured) == {':tensorflow:serving:request_count{model_name="echo",status="CANCELLED"}': 1}


def test_names_that_callers_make_up_are_not_counted() -> None:
    measured = metrics()
    for number in range(100):
        ask(measured, ending(NotFound("no")), f"invented{number}")
    assert series(measured) == {}


def test_the_buckets_are_its_own() -> None:
    measured = metrics()
    ask(measured, ending(None), "echo")
    limits = [line.split('le="')[1].split('"')[0] for line in series(measured) if "_bucket" in line]
    assert len(limits) == 34
    assert limits[: len(FIRST_LIMITS)] == FIRST_LIMITS
    assert limits[-len(LAST_LIMITS) :] == LAST_LIMITS


def test_labels_are_escaped_as_its_exporter_does() -> None:
    measured = metrics()
    ask(measured, ending(None), 'a"b\\')
    text = "".join(measured.pieces())
    assert ':tensorflow:serving:request_count{model_name="a\\"b\\\\",status="OK"} 1' in text


def predict(model: str) -> bytes:
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(1.0)
    written: bytes = request.SerializeToString()
    return written


def test_the_api_and_the_entry_point_are_those_that_served() -> None:
    service = ServiceDouble(echo("FP32"))
    service.tensorflow_metrics = measured = metrics()
    methods = {method.path.rpartition("/")[2]: method.unary for method in grpc_methods(service)}  # type: ignore[arg-type]
    router = Router(http_routes(service))  # type: ignore[arg-type]

    def rest(method: str, path: str, body: bytes = b"") -> None:
        match = router.match(method, path)
        assert match.handler is not None
        run(outcome(match.handler(HttpCall(method, path, match.parameters, body=body))))

    for _ in range(2):
        run(outcome(methods["Predict"](predict("echo"), GrpcCall())))  # type: ignore[misc]
    run(outcome(methods["Predict"](predict("invented"), GrpcCall())))  # type: ignore[misc]
    run(outcome(methods["Classify"](predict("echo"), GrpcCall())))  # type: ignore[misc]  # not its message
    for _ in range(3):
        rest("POST", "/v1/models/echo:predict", b'{"instances": [1.0]}')
    rest("POST", "/v1/models/echo:predict", b'{"instances": ["text"]}')
    rest("POST", "/v1/models/invented:predict", b'{"instances": [1.0]}')
    rest("GET", "/v1/models/echo/metadata")
    counted = {key: value for key, value in series(measured).items() if "_count{" in key}
    name = 'model_name="echo"'
    assert counted == {
        f':tensorflow:serving:request_count{{{name},status="OK"}}': 6,
        f':tensorflow:serving:request_count{{{name},status="INVALID_ARGUMENT"}}': 2,
        f':tensorflow:serving:request_latency_count{{{name},API="Predict",entrypoint="GRPC"}}': 2,
        f':tensorflow:serving:request_latency_count{{{name},API="predict",entrypoint="REST"}}': 3,
        f':tensorflow:serving:request_latency_count{{{name},API="",entrypoint="REST"}}': 1,
        f':tensorflow:serving:runtime_latency_count{{{name},API="Predict",runtime="TF1"}}': 5,
    }


@pytest.mark.parametrize("name", ["m", "m" * 127, "m" * 5000, ""])
def test_the_model_is_read_from_the_head_of_a_message(name: str) -> None:
    assert model_name(predict(name)) == name


@pytest.mark.parametrize(
    "message", [b"", b"\x0a", b"\x0a\xff\xff\xff\xff", b"\x12\x00", b"\x0a\x02\x0a", b"\xff" * 9]
)
def test_what_is_no_such_message_names_no_model(message: bytes) -> None:
    assert model_name(message) == ""
