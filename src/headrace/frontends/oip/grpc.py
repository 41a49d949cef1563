"""The Open Inference Protocol over gRPC: ``inference.GRPCInferenceService``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from headrace.access.permissions import ADMIN, ANY, DESCRIBE, HEALTH, PREDICT
from headrace.base.errors import NotFound
from headrace.batching.request import Answer
from headrace.frontends.calls import GrpcCall, GrpcMethod, StreamHandler, UnaryHandler, answering
from headrace.frontends.oip import descriptions
from headrace.frontends.oip.grpc_streams import FINAL, Parts, in_stream, stream_error
from headrace.frontends.oip.parameters import version_number
from headrace.frontends.oip.request_messages import InferDecoder, Inference, InferRequest
from headrace.frontends.oip.response_messages import AnswerWriter, origin_field
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import decode_and_ask, form_of
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensor_templates import Serialized
from headrace.frontends.wire.time_slicer import in_steps
from headrace.lifecycle.leases import Lease
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

_SERVICE = "/inference.GRPCInferenceService/"

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
    decoder = InferDecoder(service.loaded)
    infer = _inferring(service, decoder, _inferring_new(service, decoder))
    infer_in_stream = _inferring(service, decoder, _inferring_new_in_stream(service, decoder))
    return [
        GrpcMethod(f"{_SERVICE}ModelInfer", unary=infer, takes_views=True, verbs=PREDICT),
        GrpcMethod(
            f"{_SERVICE}ModelStreamInfer", stream=_streaming(infer_in_stream, service.outcomes), verbs=PREDICT
        ),
        *(
            GrpcMethod(f"{_SERVICE}{name}", unary=_describing(service, name, how), verbs=verbs)
            for name, (how, verbs) in _PLAIN.items()
        ),
        GrpcMethod(f"{_SERVICE}ModelStatistics", unary=_counting(service), verbs=DESCRIBE),
    ]


_NewT = TypeVar("_NewT")
_InferNew = Callable[[bytes, GrpcCall, RequestBudget], Awaitable[_NewT]]
"""Answers a message that matches no template."""


def _inferring(
    service: Service, decoder: InferDecoder, infer_new: _InferNew[_NewT]
) -> Callable[[Serialized, GrpcCall], Coroutine[None, None, bytes | _NewT]]:
    recognise, predict = decoder.recognise, service.predict

    async def infer(message: Serialized, call: GrpcCall) -> bytes | _NewT:
        found = recognise(message)
        if found is None:
            with RequestBudget.of(service.limits, call) as budget:
                return await infer_new(bytes(message), call, budget)
        loaded, inputs, writer, request_id = found
        answer = await predict(loaded, inputs, call.deadline, call)
        written = writer.write(answer, request_id)
        written = written or await _write_large(service, writer, request_id, call, answer)
        return _flagged(written, answer) if call.notes else written

    return infer


def _inferring_new(service: Service, decoder: InferDecoder) -> _InferNew[bytes]:
    predict, form = service.predict, form_of(InferRequest)

    async def infer_new(message: bytes, call: GrpcCall, budget: RequestBudget) -> bytes:
        def ask(found: Inference) -> Awaitable[Answer]:
            return predict(found.loaded, found.inputs, found.deadline, call)

        steps = decoder.parse(message, call.deadline, budget)
        found, answer = await decode_and_ask(message, form, steps, ask, budget, service.slicer)
        written = await _write(service, found.writer, found.request_id, call, answer)
        return _flagged(written, answer) if call.notes else written

    return infer_new


def _inferring_new_in_stream(service: Service, decoder: InferDecoder) -> _InferNew[bytes | Parts]:
    predict, form = service.predict, form_of(InferRequest)

    async def infer_new(message: bytes, call: GrpcCall, budget: RequestBudget) -> bytes | Parts:
        lease: Lease[LoadedVersion] | None = None

        def ask(found: Inference) -> Awaitable[Answer | None]:
            nonlocal lease
            if found.loaded.streams is None:
                return predict(found.loaded, found.inputs, found.deadline, call)
            lease = Lease(found.loaded)  # until the request's turn in the stream comes
            found.loaded.streams.hold(lease)
            return _nothing()

        try:
            steps = decoder.parse(message, call.deadline, budget)
            found, answer = await decode_and_ask(message, form, steps, ask, budget, service.slicer)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        write = partial(_write, service, found.writer, found.request_id, call)
        if lease is not None:
            return Parts(service, found, lease, call, write)
        whole = cast("Answer", answer)
        written = await write(whole)
        written = _flagged(written, whole) if call.notes else written
        return written + FINAL if found.wants_final else written

    return infer_new


async def _nothing() -> None:
    """Answer nothing yet."""


async def _write(
    service: Service, writer: AnswerWriter, request_id: str, call: GrpcCall, answer: Answer
) -> bytes:
    return writer.write(answer, request_id) or await _write_large(service, writer, request_id, call, answer)


async def _write_large(
    service: Service, writer: AnswerWriter, request_id: str, call: GrpcCall, answer: Answer
) -> bytes:
    with RequestBudget.of(service.limits, call) as budget:
        async with service.slicer as slicer:
            return await in_steps(writer.writing(answer, request_id, budget), slicer)


def _flagged(written: bytes, answer: Answer) -> bytes:
    return written + origin_field(answer.origin) if answer.origin.is_default else written


# ---- Streams ----


_Message = asyncio.Task[bytes | Parts]
"""Answers one message of a stream."""


def _streaming(
    infer: Callable[[bytes, GrpcCall], Awaitable[bytes | Parts]], outcomes: Outcomes
) -> StreamHandler:
    # Only bytes reach ``in_stream``, as Parts are Streamed.
    respond = cast("Callable[[bytes | Parts], bytes | Parts]", in_stream)
    answer = answering(infer, outcomes, respond, stream_error)

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        under_way: asyncio.Queue[_Message | None] = asyncio.Queue()
        free = asyncio.Semaphore(_STREAM_REQUESTS)

        async def read() -> None:
            try:
                async for message in messages:
                    await free.acquire()
                    under_way.put_nowait(asyncio.create_task(answer(message, call)))
            finally:
                under_way.put_nowait(None)

        reader = asyncio.create_task(read())
        task: _Message | None = None
        try:
            while (task := await under_way.get()) is not None:
                reply = await task  # in the order of the requests
                if type(reply) is Parts:
                    async with aclosing(reply.responses()) as responses:
                        async for response in responses:
                            yield response
                else:
                    yield reply
                free.release()
            await reader  # raises the error that ended the reading, if any
        finally:
            try:
                await _cancel([reader, *_left(under_way, task)])
            finally:
                # The reader's exception has a traceback that refers to this frame. Without this, the cycle
                # would keep all of it until the next garbage collection.
                del reader

    return stream


def _left(under_way: asyncio.Queue[_Message | None], task: _Message | None) -> Iterable[_Message]:
    """Yield the tasks of messages that are not answered, the one whose turn it is first."""
    while task is not None or not under_way.empty():
        if task is not None:
            yield task
        task = None if under_way.empty() else under_way.get_nowait()


async def _cancel(tasks: list[_Message | asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for reply in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(reply, Parts):
            reply.drop()


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
