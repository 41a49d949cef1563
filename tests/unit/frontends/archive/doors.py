"""A Door to a real archive in memory, and calls as transports make them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings
from headrace.archive.model.columns import ColumnSettings, columns_of
from headrace.base.errors import HeadraceError
from headrace.config import Limits
from headrace.frontends.archive import grpc, rest
from headrace.frontends.archive.service import ArchiveService
from headrace.frontends.calls import GrpcCall, HttpCall, HttpReply
from headrace.frontends.wire import protos
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.storage.opening import open_queue, open_store
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.telemetry.outcomes import Outcomes
from tests.unit.frontends.oip.doubles import run

DIMENSION = 4
COLUMNS: dict[str, str | ColumnSettings] = {
    "age": "int64",
    "country": ColumnSettings(dtype="text", bytes=8, default="??"),
    "score": "float32",
}
SPACES = {
    "items": SpaceSettings(dimension=DIMENSION),
    "halves": SpaceSettings(dimension=DIMENSION, dtype="float16"),
    "wide": SpaceSettings(dimension=5000),
    "users": SpaceSettings(columns=columns_of(COLUMNS)),
    "texts": SpaceSettings(
        columns=columns_of({"text": ColumnSettings(dtype="text", bytes=60_000, default="none"), "n": "int64"})
    ),
    "few": SpaceSettings(dimension=DIMENSION, max_keys=3, max_key_bytes=10),
}


@contextmanager
def an_archive() -> Iterator[Archive]:
    """What is behind the Door."""
    config = ArchiveConfig(store=MemoryStore(), queue=MemoryQueue(), spaces=SPACES)
    with Archive(config, open_store(config.store), open_queue(config.queue)) as archive:
        yield archive


@contextmanager
def a_door(*, is_admin: bool = False, limits: Limits | None = None) -> Iterator[ArchiveService]:
    """A Door to four spaces and two feature tables, which are filled by Put."""
    with an_archive() as archive:
        service = ArchiveService(archive, limits or Limits(), TimeSlicer(), is_admin=is_admin)
        try:
            yield service
        finally:
            service.close()


def post(service: ArchiveService, path: str, body: object, **headers: str) -> Any:
    """What a POST answers; its text if that is given as bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    space, _, verb = path.partition(":")
    routes = {one.pattern: one.handler for one in rest.http_routes(service)}
    call = HttpCall("POST", f"/v1/archive/{path}", {"space": space}, body=text)
    call.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return json.loads(answered(routes[f"/v1/archive/{{space}}:{verb}"](call)).body)


def answered(handling: Any) -> HttpReply:
    """What a handler replies."""

    async def reply() -> HttpReply:
        done: HttpReply = await handling
        return done

    return run(reply())


def ask(service: ArchiveService, method: str, **fields: object) -> Any:
    """What a unary method answers, as a message."""
    message = protos.message(f"headrace.archive.v1.{method}Request")(**fields).SerializeToString()
    return protos.message(f"headrace.archive.v1.{method}Response").FromString(sent(service, method, message))


def sent(service: ArchiveService, method: str, message: bytes) -> bytes:
    """What a unary method answers to bytes."""
    handlers = {one.path.rpartition("/")[2]: one.unary for one in grpc.grpc_methods(service, Outcomes())}

    async def answer() -> bytes:
        handler = handlers[method]
        assert handler is not None
        return await handler(message, GrpcCall())

    return run(answer())


def stream(service: ArchiveService, *messages: bytes) -> list[Any]:
    """What LookupStream answers to each message."""
    (handler,) = [one.stream for one in grpc.grpc_methods(service, Outcomes()) if one.stream is not None]

    async def coming() -> AsyncIterator[bytes]:
        for message in messages:
            yield message
            await asyncio.sleep(0)

    async def answers() -> list[bytes]:
        return [one async for one in handler(coming(), GrpcCall())]

    kind = protos.message("headrace.archive.v1.LookupStreamResponse")
    return [kind.FromString(one) for one in run(answers())]


def error_of(call: Any) -> HeadraceError:
    """The error that something ends with."""
    try:
        call()
    except HeadraceError as error:
        return error
    raise AssertionError("no error")
