"""The archive over gRPC: ``headrace.archive.v1.Archive``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.access.verbs import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.model.records import ROW
from headrace.base.errors import HeadraceError, InvalidRequest
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
from headrace.frontends.calls import GrpcCall, GrpcMethod, StreamHandler, UnaryHandler
from headrace.frontends.chunks import Pieces
from headrace.frontends.wire import protos
from headrace.frontends.wire.cooperative_steps import in_steps
from headrace.frontends.wire.request_budget import Allowance
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.frontends.archive.service import Door

SERVICE = f"{PACKAGE}.Archive"
"""Full name of the service."""


def grpc_methods(door: Door, outcomes: Outcomes) -> list[GrpcMethod]:
    """Return the methods of the service.

    Args:
        door: The Door of the archive.
        outcomes: Records the calls that a stream's messages are.
    """
    lookup = _looking_up(door)
    return [
        GrpcMethod(f"/{SERVICE}/Lookup", unary=lookup, verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/LookupStream", stream=_streaming(lookup, outcomes), verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/Put", unary=_changing(door, "Put", _put), verbs=ARCHIVE_WRITE),
        GrpcMethod(
            f"/{SERVICE}/Invalidate",
            unary=_changing(door, "Invalidate", _invalidate),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(
            f"/{SERVICE}/Forget",
            unary=_changing(door, "Forget", _forget),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(f"/{SERVICE}/Describe", unary=_describing(door), verbs=DESCRIBE_ARCHIVE),
    ]


def _looking_up(door: Door) -> UnaryHandler:
    find = door.answering

    async def lookup(message: bytes, call: GrpcCall) -> bytes | Pieces:
        if is_small(message):
            asked = lookup_of(message)
            reader = find(asked.space, asked.version)
            found = door.quick(reader, asked.keys, call)
            if found is not None:
                found = await door.finished(reader, found, call, 0.0) if found.waits else found
                return response(found, with_written=asked.written)
        with Allowance.of(door.limits, call) as allowance:
            if not is_small(message):
                asked = await _parsed_large(door, message, allowance)
            reader = find(asked.space, asked.version)
            found = await door.lookup(reader, asked.keys, call, 0.0, allowance)
            return response(found, with_written=asked.written)

    return lookup


async def _parsed_large(door: Door, message: bytes, allowance: Allowance) -> Asked:
    if is_light(message):
        await door.lane.step()
        with suppress(InvalidRequest):  # parsing in steps finds the error again, and names the field
            asked = lookup_of(message, counted=True)
            allowance.hold(len(message))
            return asked
    return await _parsed(door, message, LookupRequest, allowance)


async def _parsed(door: Door, message: bytes, kind: protos.MessageClass, allowance: Allowance) -> Asked:
    allowance.hold(len(message))  # for the texts, which are copied from it
    async with door.lane as lane:
        return await in_steps(parsing(message, kind, door.most_keys, door.longest_key), lane)


def _streaming(lookup: UnaryHandler, outcomes: Outcomes) -> StreamHandler:
    async def answer(message: bytes, of_stream: GrpcCall) -> bytes | Pieces:
        call = of_stream.of_message()
        if of_stream.outcome is not None:
            outcomes.begin_message(call, of_stream.outcome)
        try:
            written = await lookup(message, call)
        except HeadraceError as error:
            outcomes.failed(call, error)
            return error_in_stream(error)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        outcomes.answered(call)
        return in_stream(written)

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes | Pieces]:
        async for message in messages:
            yield await answer(message, call)

    return stream


Change = Callable[["Door", Asked, GrpcCall], Awaitable[None]]
"""Applies the change that a message asks for."""


def _changing(door: Door, name: str, change: Change) -> UnaryHandler:
    kind, nothing = protos.message(f"{PACKAGE}.{name}Request"), b""

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        with Allowance.of(door.limits, call) as allowance:
            asked = parsed(message, kind) if is_small(message) else None
            await change(door, asked or await _parsed(door, message, kind, allowance), call)
        return nothing

    return handle


async def _put(door: Door, asked: Asked, call: GrpcCall) -> None:
    values = rows_of(asked) if asked.dtype == ROW else vectors_of(asked)
    await door.put(asked.space, asked.keys, values, asked.version, call)


async def _invalidate(door: Door, asked: Asked, call: GrpcCall) -> None:
    await door.invalidate(asked.space, asked.keys, call)


async def _forget(door: Door, asked: Asked, call: GrpcCall) -> None:
    await door.forget(asked.space, asked.keys, call)


def _describing(door: Door) -> UnaryHandler:
    request_class = protos.message(f"{PACKAGE}.DescribeRequest")
    response_class = protos.message(f"{PACKAGE}.DescribeResponse")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        space = protos.parse(request_class, message).space
        written: bytes = response_class(spaces=door.described(space)).SerializeToString()
        return written

    return handle
