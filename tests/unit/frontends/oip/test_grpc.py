"""The methods of inference.GRPCInferenceService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable, Unsupported
from headrace.base.tensors import BY_OIP
from headrace.batching.request import NO_DEADLINE, Answer, Call
from headrace.frontends.calls import GrpcCall, GrpcMethod
from headrace.frontends.oip.grpc import grpc_methods
from headrace.frontends.oip.request_messages import InferRequest
from headrace.frontends.oip.response_messages import InferResponse
from headrace.frontends.wire import protos
from headrace.model.servable import CheckedInputs, Signature
from headrace.telemetry.outcomes import Channel
from tests.unit.frontends.oip.doubles import LoadedDouble, ServiceDouble, ctr, echo, run, spec
from tests.unit.frontends.turns import Turns
from tests.waiting import until_in_loop

StreamResponse = protos.message("inference.ModelStreamInferResponse")


def method(service: ServiceDouble, name: str) -> GrpcMethod:
    paths = {one.path: one for one in grpc_methods(service)}
    return paths[f"/inference.GRPCInferenceService/{name}"]


def call(service: ServiceDouble, method_name: str, /, **fields: object) -> Any:
    request = protos.message(f"inference.{method_name}Request")(**fields)
    handler = method(service, method_name).unary
    assert handler is not None
    return protos.message(f"inference.{method_name}Response").FromString(
        run(handler(request.SerializeToString(), GrpcCall()))
    )


def number(value: float, request_id: str = "", model: str = "echo") -> bytes:
    request = InferRequest(model_name=model, id=request_id, raw_input_contents=[np.float32(value).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    return bytes(request.SerializeToString())


def test_every_method_of_the_service_is_there() -> None:
    wanted = protos.POOL.FindServiceByName("inference.GRPCInferenceService").methods
    paths = {f"/inference.GRPCInferenceService/{one.name}" for one in wanted}
    assert {one.path for one in grpc_methods(ServiceDouble())} == paths


def test_a_request_is_answered_and_its_deadline_passed_on() -> None:
    service = ServiceDouble(echo("FP32"))
    handler = method(service, "ModelInfer").unary
    assert handler is not None
    for deadline in (5.0, NO_DEADLINE):
        answer = run(handler(number(0.5, "abc"), GrpcCall(deadline=deadline)))
        response = InferResponse.FromString(answer)
        assert (response.model_name, response.model_version, response.id) == ("echo", "3", "abc")
        assert list(response.raw_output_contents) == [np.float32(0.5).tobytes()]
    assert service.deadlines == [5.0, NO_DEADLINE]


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize(("datatype", "contents"), [("INT64", "int64_contents"), ("BYTES", "bytes_contents")])
def test_a_large_answer_is_written_in_pieces_with_others_in_between(
    datatype: str, contents: str, raw: bool
) -> None:
    many = np.full((1, 1 << 18), b"text" if datatype == "BYTES" else -1, BY_OIP[datatype].dtype)
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("y", datatype, None),))
    service = ServiceDouble(LoadedDouble(signature, lambda _: {"y": many}, name="many"))
    request = InferRequest(model_name="many", id="abc")
    request.inputs.add(name="x", datatype="FP32", shape=[1], contents={"fp32_contents": [] if raw else [1]})
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(bytes(4))
    others = Turns()

    async def ask() -> Any:
        handler = method(service, "ModelInfer").unary
        assert handler is not None
        async with others:
            answer = await handler(request.SerializeToString(), GrpcCall())
        return InferResponse.FromString(answer)

    response = asyncio.run(ask())
    if raw and datatype == "INT64":  # bytes as they are
        assert list(response.raw_output_contents) == [many.tobytes()]
        return
    assert others.count > 8
    (output,) = response.outputs
    assert (response.id, output.name, output.datatype, list(output.shape)) == (
        "abc", "y", datatype, [1, 1 << 18],
    )  # fmt: skip
    if raw:
        assert response.raw_output_contents[0] == (b"\4\0\0\0text") * (1 << 18)
    else:
        assert list(getattr(output.contents, contents)) == many[0].tolist()


def test_the_server_says_whether_it_lives_and_is_ready() -> None:
    service = ServiceDouble(ctr())
    assert call(service, "ServerLive").live
    assert call(service, "ServerReady").ready
    service.is_ready = False
    assert not call(service, "ServerReady").ready


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [("ctr", "", True), ("ctr", "3", True), ("ctr", "1", False), ("ctr", "9", False), ("other", "", False)],
)
def test_a_model_says_whether_it_is_ready(name: str, version: str, ready: bool) -> None:
    assert call(ServiceDouble(ctr()), "ModelReady", name=name, version=version).ready is ready


def test_the_server_tells_its_name_and_extensions() -> None:
    response = call(ServiceDouble(), "ServerMetadata")
    assert (response.name, response.version) == ("headrace", "0.0.0")
    assert "statistics" in response.extensions


def test_a_model_tells_what_it_takes_and_gives() -> None:
    response = call(ServiceDouble(ctr()), "ModelMetadata", name="ctr")
    assert (response.name, list(response.versions), response.platform) == ("ctr", ["3"], "onnxruntime_onnx")
    tensors = [(one.name, one.datatype, list(one.shape)) for one in (*response.inputs, *response.outputs)]
    assert tensors == [("cat", "INT32", [-1, 26]), ("dense", "FP32", [-1, 13]), ("p", "FP32", [-1, 1])]


def test_a_model_tells_its_settings_in_tritons_words() -> None:
    config = call(ServiceDouble(ctr()), "ModelConfig", name="ctr", version="3").config
    assert (config.name, config.backend, config.max_batch_size) == ("ctr", "onnxruntime", 256)
    types = protos.POOL.FindEnumTypeByName("inference.DataType").values_by_number
    assert [(one.name, types[one.data_type].name, list(one.dims)) for one in config.input] == [
        ("cat", "TYPE_INT32", [26]),
        ("dense", "TYPE_FP32", [13]),
    ]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.version_policy.latest.num_versions == 1


def test_statistics_are_those_of_the_versions_asked_for() -> None:
    counted = ctr()
    counted.statistics.requests, counted.statistics.rows, counted.statistics.batches = 4, 40, 2
    counted.statistics.request_seconds, counted.statistics.queue_seconds = 1.5, 1.0
    counted.statistics.compute_seconds = 0.25
    counted.statistics.batch_rows[20] = [2, 0.5]
    counted.statistics.last_request_unix_seconds = 1.5
    service = ServiceDouble(counted, echo("FP32"))
    (stats,) = call(service, "ModelStatistics", name="ctr").model_stats
    assert (stats.inference_count, stats.execution_count, stats.last_inference) == (40, 2, 1500)
    assert stats.inference_stats.success.count == 4
    compute = stats.inference_stats.compute_infer
    assert (compute.count, compute.ns) == (4, 500_000_000)
    assert [(one.batch_size, one.compute_infer.count) for one in stats.batch_stats] == [(20, 2)]
    assert [one.name for one in call(service, "ModelStatistics").model_stats] == ["ctr", "echo"]
    assert len(call(service, "ModelStatistics", name="ctr", version="3").model_stats) == 1
    with pytest.raises(NotFound):
        call(service, "ModelStatistics", name="other")


def test_the_index_lists_versions_with_their_state() -> None:
    service = ServiceDouble(ctr())
    models = call(service, "RepositoryIndex").models
    assert [(one.name, one.version, one.state, one.reason) for one in models] == [
        ("ctr", "3", "READY", ""),
        ("ctr", "1", "UNAVAILABLE", "corrupt"),
    ]
    assert [one.version for one in call(service, "RepositoryIndex", ready=True).models] == ["3"]


def test_models_are_loaded_and_unloaded_where_the_operator_allows_it() -> None:
    service = ServiceDouble(ctr(), admin=True)
    call(service, "RepositoryModelLoad", model_name="ctr")
    call(
        service,
        "RepositoryModelUnload",
        model_name="ctr",
        parameters={"unload_dependents": {"bool_param": True}},
    )
    assert service.asked == [("reload", "ctr"), ("unload", "ctr")]
    with pytest.raises(FailedPrecondition):
        call(ServiceDouble(ctr()), "RepositoryModelLoad", model_name="ctr")


@pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
def test_models_are_never_loaded_from_a_message(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name}: models are loaded from the server's disk"):
        call(ServiceDouble(ctr(), admin=True), "RepositoryModelLoad", model_name="ctr", parameters={name: {}})


def test_bytes_that_are_no_message_are_refused() -> None:
    handler = method(ServiceDouble(), "ModelReady").unary
    assert handler is not None
    with pytest.raises(InvalidRequest, match="ModelReadyRequest"):
        run(handler(b"\xff", GrpcCall()))


# ---- Streams ----


async def stream(service: ServiceDouble, messages: Iterable[bytes]) -> list[Any]:
    async def feed() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    handler = method(service, "ModelStreamInfer").stream
    assert handler is not None
    async with asyncio.timeout(30):
        return [StreamResponse.FromString(one) async for one in handler(feed(), GrpcCall())]


def test_a_stream_answers_every_request_in_order_and_survives_errors() -> None:
    messages = [number(value, str(value)) for value in range(200)]
    messages[7] = number(0, "7", model="other")
    messages[9] = b"\xff"
    service = ServiceDouble(echo("FP32"))
    responses = run(stream(service, messages))
    assert len(responses) == 200
    assert [one.infer_response.id for one in responses] == [str(i) if i != 9 else "" for i in range(200)]
    failed = [index for index, one in enumerate(responses) if one.error_message]
    assert failed == [7, 9]
    assert "model 'other'" in responses[7].error_message
    failed = service.outcomes.tallies[Channel.GRPC].failed
    assert (failed["NOT_FOUND"], failed["INVALID_ARGUMENT"]) == (1, 1)
    assert responses[8].infer_response.raw_output_contents[0] == np.float32(8).tobytes()


class GatedService(ServiceDouble):
    """Answers only once it is told to."""

    def __init__(self, *versions: LoadedDouble) -> None:
        super().__init__(*versions)
        self.gate = asyncio.Event()
        self.waiting = 0

    async def predict(
        self,
        loaded: LoadedDouble,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> Answer:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return await super().predict(loaded, inputs, deadline, call)


def test_requests_of_one_stream_are_under_way_together_but_not_without_bound() -> None:
    async def scenario() -> int:
        service = GatedService(echo("FP32"))
        responses = asyncio.create_task(stream(service, [number(1.0)] * 100))
        await until_in_loop(lambda: service.waiting == 64)
        for _ in range(10):
            await asyncio.sleep(0)
        assert service.waiting == 64
        service.gate.set()
        return len(await responses)

    assert run(scenario()) == 100


def test_a_stream_that_is_cancelled_leaves_nothing_running() -> None:
    async def scenario() -> None:
        service = GatedService(echo("FP32"))
        responses = asyncio.create_task(stream(service, [number(1.0)] * 100))
        await until_in_loop(lambda: service.waiting == 64)
        responses.cancel()
        with pytest.raises(asyncio.CancelledError):
            await responses
        await until_in_loop(lambda: len(asyncio.all_tasks()) == 1)
        assert service.waiting == 0

    run(scenario())


def test_what_ends_the_reading_of_a_stream_ends_the_stream() -> None:
    async def scenario() -> None:
        async def feed() -> AsyncIterator[bytes]:
            yield number(1.0)
            raise Unavailable("the connection is gone")

        handler = method(ServiceDouble(echo("FP32")), "ModelStreamInfer").stream
        assert handler is not None
        responses = handler(feed(), GrpcCall())
        await anext(responses)
        with pytest.raises(Unavailable):
            await anext(responses)

    run(scenario())
