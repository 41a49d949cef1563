"""The archive over gRPC: ``headrace.archive.v1.Archive``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.access.permissions import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.model.records import ROW
from headrace.base.errors import InvalidRequest
from headrace.frontends.archive.messages import (
    PACKAGE,
    Asked,
    LookupRequest,
    error_in_stream,
    in_stream,
    is_light,
    is_small,
    lookup_of,
    parsed,
    parsing,
    response,
    rows_of,
    vectors_of,
)
from headrace.frontends.calls import GrpcCall, GrpcMethod, Pieces, StreamHandler, UnaryHandler, answering
from headrace.frontends.wire import protos
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import in_steps
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.frontends.archive.service import ArchiveService

SERVICE = f"{PACKAGE}.Archive"
"""Full name of the service."""


def grpc_methods(service: ArchiveService, outcomes: Outcomes) -> list[GrpcMethod]:
    """Return the methods of the service.

    Args:
        service: The archive's service.
        outcomes: Records the calls that a stream's messages are.
    """
    lookup = _looking_up(service)
    return [
        GrpcMethod(f"/{SERVICE}/Lookup", unary=lookup, verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/LookupStream", stream=_streaming(lookup, outcomes), verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/Put", unary=_changing(service, "Put", _put), verbs=ARCHIVE_WRITE),
        GrpcMethod(
            f"/{SERVICE}/Invalidate",
            unary=_changing(service, "Invalidate", _invalidate),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(
            f"/{SERVICE}/Forget",
            unary=_changing(service, "Forget", _forget),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(f"/{SERVICE}/Describe", unary=_describing(service), verbs=DESCRIBE_ARCHIVE),
    ]


def _looking_up(service: ArchiveService) -> UnaryHandler:
    find = service.answering

    async def lookup(message: bytes, call: GrpcCall) -> bytes | Pieces:
        if is_small(message):
            asked = lookup_of(message)
            reader = find(asked.space, asked.version)
            found = service.quick(reader, asked.keys, call)
            if found is not None:
                found = await service.finished(reader, found, call, 0.0) if found.waits else found
                return response(found, with_written=asked.written)
        with RequestBudget.of(service.limits, call) as budget:
            if not is_small(message):
                asked = await _parsed_large(service, message, budget)
            reader = find(asked.space, asked.version)
            found = await service.lookup(reader, asked.keys, call, 0.0, budget)
            return response(found, with_written=asked.written)

    return lookup


async def _parsed_large(service: ArchiveService, message: bytes, budget: RequestBudget) -> Asked:
    if is_light(message):
        await service.slicer.step()
        with suppress(InvalidRequest):  # parsing in steps finds the error again, and names the field
            asked = lookup_of(message, counted=True)
            budget.hold(len(message))
            return asked
    return await _parsed(service, message, LookupRequest, budget)


async def _parsed(
    service: ArchiveService, message: bytes, kind: protos.MessageClass, budget: RequestBudget
) -> Asked:
    budget.hold(len(message))  # for the texts, which are copied from it
    async with service.slicer as slicer:
        return await in_steps(parsing(message, kind, service.most_keys, service.longest_key), slicer)


def _streaming(lookup: UnaryHandler, outcomes: Outcomes) -> StreamHandler:
    answer = answering(lookup, outcomes, in_stream, lambda _, error: error_in_stream(error))

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes | Pieces]:
        async for message in messages:
            yield await answer(message, call)

    return stream


Change = Callable[["ArchiveService", Asked, GrpcCall], Awaitable[None]]
"""Applies the change that a message asks for."""


def _changing(service: ArchiveService, name: str, change: Change) -> UnaryHandler:
    kind, nothing = protos.message(f"{PACKAGE}.{name}Request"), b""

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        with RequestBudget.of(service.limits, call) as budget:
            asked = parsed(message, kind) if is_small(message) else None
            await change(service, asked or await _parsed(service, message, kind, budget), call)
        return nothing

    return handle


async def _put(service: ArchiveService, asked: Asked, call: GrpcCall) -> None:
    values = rows_of(asked) if asked.dtype == ROW else vectors_of(asked)
    await service.put(asked.space, asked.keys, values, asked.version, call)


async def _invalidate(service: ArchiveService, asked: Asked, call: GrpcCall) -> None:
    await service.invalidate(asked.space, asked.keys, call)


async def _forget(service: ArchiveService, asked: Asked, call: GrpcCall) -> None:
    await service.forget(asked.space, asked.keys, call)


def _describing(service: ArchiveService) -> UnaryHandler:
    request_class = protos.message(f"{PACKAGE}.DescribeRequest")
    response_class = protos.message(f"{PACKAGE}.DescribeResponse")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        space = protos.parse(request_class, message).space
        written: bytes = response_class(spaces=service.described(space)).SerializeToString()
        return written

    return handle
