"""The Open Inference Protocol over gRPC: ``inference.GRPCInferenceService``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from headrace.access.permissions import ADMIN, ANY, DESCRIBE, HEALTH, PREDICT
from headrace.base.errors import HeadraceError, NotFound
from headrace.batching.request import Answer
from headrace.frontends.calls import GrpcCall, GrpcMethod, StreamHandler, UnaryHandler, told
from headrace.frontends.oip import descriptions
from headrace.frontends.oip.messages import REQUEST_ID, InferDecoder, Inference, InferRequest
from headrace.frontends.oip.parameters import version_number
from headrace.frontends.oip.response_messages import AnswerWriter, origin_field
from headrace.frontends.stream_messages import answering
from headrace.frontends.wire import protos
from headrace.frontends.wire.cooperative_steps import in_steps
from headrace.frontends.wire.message_decoding import decode_and_ask
from headrace.frontends.wire.protobuf_cost import form_of
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, fields, length_prefix
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensor_templates import MOST_FIELDS, Serialized
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.frontends.service import Service

_SERVICE = "/inference.GRPCInferenceService/"
_INFER_RESPONSE = 2  # ModelStreamInferResponse.infer_response

# Limit of concurrent requests of one stream: enough to fill batches, few enough that a client that does not
# read its answers is stopped from sending more.
_STREAM_REQUESTS = 64

Answering = Callable[["Service", protos.Message], "dict[str, object]"]
"""Maps a request message to the fields of the response."""


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """Return the methods of the service.

    Args:
        service: The Service.
    """
    infer = _inferring(service)
    return [
        GrpcMethod(f"{_SERVICE}ModelInfer", unary=infer, takes_views=True, verbs=PREDICT),
        GrpcMethod(f"{_SERVICE}ModelStreamInfer", stream=_streaming(infer, service.outcomes), verbs=PREDICT),
        *(
            GrpcMethod(f"{_SERVICE}{name}", unary=_describing(service, name, how), verbs=verbs)
            for name, (how, verbs) in _PLAIN.items()
        ),
        GrpcMethod(f"{_SERVICE}ModelStatistics", unary=_counting(service), verbs=DESCRIBE),
    ]


_Inferring = Callable[[Serialized, GrpcCall], Awaitable[bytes]]


def _inferring(service: Service) -> _Inferring:
    decoder = InferDecoder(service.loaded)
    recognise, parse, predict = decoder.recognise, decoder.parse, service.predict
    form = form_of(InferRequest)

    async def infer(message: Serialized, call: GrpcCall) -> bytes:
        found = recognise(message)
        if found is None:
            with RequestBudget.of(service.limits, call) as budget:
                return await infer_new(bytes(message), call, budget)
        loaded, inputs, writer, request_id = found
        answer = await predict(loaded, inputs, call.deadline, call)
        written = writer.write(answer, request_id) or await write_large(writer, answer, request_id, call)
        return _flagged(written, answer) if call.notes else written

    async def infer_new(message: bytes, call: GrpcCall, budget: RequestBudget) -> bytes:
        def ask(found: Inference) -> Awaitable[Answer]:
            return predict(found.loaded, found.inputs, found.deadline, call)

        steps = parse(message, call.deadline, budget)
        found, answer = await decode_and_ask(message, form, steps, ask, budget, service.slicer)
        writer, request_id = found.writer, found.request_id
        written = writer.write(answer, request_id) or await write_large(writer, answer, request_id, call)
        return _flagged(written, answer) if call.notes else written

    async def write_large(writer: AnswerWriter, answer: Answer, request_id: str, call: GrpcCall) -> bytes:
        with RequestBudget.of(service.limits, call) as budget:
            async with service.slicer as slicer:
                return await in_steps(writer.writing(answer, request_id, budget), slicer)

    return infer


def _flagged(written: bytes, answer: Answer) -> bytes:
    return written + origin_field(answer.origin) if answer.origin.is_default else written


# ---- Streams ----


def _streaming(infer: _Inferring, outcomes: Outcomes) -> StreamHandler:
    answer = answering(infer, outcomes, _in_stream, stream_error)

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        free = asyncio.Semaphore(_STREAM_REQUESTS)

        async def read() -> None:
            try:
                async for message in messages:
                    await free.acquire()
                    under_way.put_nowait(asyncio.create_task(answer(message, call)))
            finally:
                under_way.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await under_way.get()) is not None:
                yield await task  # in the order of the requests
                free.release()
            await reader  # raises the error that ended the reading, if any
        finally:
            try:
                await _cancel([reader, *_left(under_way)])
            finally:
                # The reader's exception has a traceback that refers to this frame. Without this, the cycle
                # would keep all of it until the next garbage collection.
                del reader

    return stream


def _in_stream(response: bytes) -> bytes:
    return length_prefix(_INFER_RESPONSE, len(response)) + response


def _left(under_way: asyncio.Queue[asyncio.Task[bytes] | None]) -> Iterable[asyncio.Task[bytes]]:
    while not under_way.empty():
        task = under_way.get_nowait()
        if task is not None:
            yield task


async def _cancel(tasks: list[asyncio.Task[bytes] | asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def stream_error(message: bytes, error: HeadraceError) -> bytes:
    """Return the response to a failed request of a stream; the stream continues.

    Args:
        message: The request, whose id is returned if it can be read.
        error: The error.
    """
    request_id = ""
    try:
        for field in fields(message, steps=iter(range(MOST_FIELDS))):
            if field.number == REQUEST_ID and field.wire_type == LENGTH_DELIMITED:
                request_id = message[field.start : field.stop].decode()
    except ValueError:
        pass  # a malformed message is what ``error`` reports
    response = protos.message("inference.ModelStreamInferResponse")(
        error_message=told(error), infer_response={"id": request_id}
    )
    written: bytes = response.SerializeToString()
    return written


# ---- Other methods: plain values in, plain values out ----


def _describing(service: Service, name: str, describe: Answering) -> UnaryHandler:
    request_class = protos.message(f"inference.{name}Request")
    response_class = protos.message(f"inference.{name}Response")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        response = response_class(**describe(service, protos.parse(request_class, message)))
        written: bytes = response.SerializeToString()
        return written

    return handle


def _counting(service: Service) -> UnaryHandler:
    request_class = protos.message("inference.ModelStatisticsRequest")
    response_class = protos.message("inference.ModelStatisticsResponse")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        request = protos.parse(request_class, message)
        told = await descriptions.statistics(service, request.name, version_number(request.version))
        written: bytes = response_class(**told).SerializeToString()
        return written

    return handle


def _model_ready(service: Service, request: protos.Message) -> dict[str, object]:
    try:
        return {"ready": service.model_ready(request.name, version_number(request.version))}
    except NotFound:
        return {"ready": False}  # a readiness check is answered, not refused


def _model_metadata(service: Service, request: protos.Message) -> dict[str, object]:
    loaded = service.loaded(request.name, version_number(request.version))
    return descriptions.model_metadata(service, loaded)


def _model_config(service: Service, request: protos.Message) -> dict[str, object]:
    loaded = service.loaded(request.name, version_number(request.version))
    return {"config": descriptions.model_config(loaded)}


def _repository_index(service: Service, request: protos.Message) -> dict[str, object]:
    return {"models": descriptions.repository_index(service, only_ready=request.ready)}


def _load(service: Service, request: protos.Message) -> dict[str, object]:
    descriptions.refuse_load_parameters(request.parameters)
    service.reload(request.model_name)
    return {}


def _unload(service: Service, request: protos.Message) -> dict[str, object]:
    service.unload(request.model_name)
    return {}


_PLAIN: dict[str, tuple[Answering, int]] = {
    "ServerLive": (lambda service, _: {"live": service.live()}, HEALTH),
    "ServerReady": (lambda service, _: {"ready": service.ready()}, HEALTH),
    "ServerMetadata": (lambda service, _: descriptions.server_metadata(service), ANY),
    "ModelReady": (_model_ready, DESCRIBE),
    "ModelMetadata": (_model_metadata, DESCRIBE),
    "ModelConfig": (_model_config, DESCRIBE),
    "RepositoryIndex": (_repository_index, DESCRIBE),
    "RepositoryModelLoad": (_load, ADMIN),
    "RepositoryModelUnload": (_unload, ADMIN),
}
