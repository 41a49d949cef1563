"""gRPC's health checking protocol, which says whether to send requests here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from headrace.access.permissions import HEALTH
from headrace.base.errors import NotFound, Overloaded, shown
from headrace.frontends.calls import GrpcCall, GrpcMethod
from headrace.frontends.wire import protos

if TYPE_CHECKING:
    from headrace.frontends.service import Service

_SERVICE = "/grpc.health.v1.Health/"
_WATCH_SECONDS = 0.5
# Until the server stops, only the client ends a watch, and each one holds an open call's resources.
_MOST_WATCHES = 1024

_Request = protos.message("grpc.health.v1.HealthCheckRequest")
_Response = protos.message("grpc.health.v1.HealthCheckResponse")
_ListRequest = protos.message("grpc.health.v1.HealthListRequest")
_ListResponse = protos.message("grpc.health.v1.HealthListResponse")

SERVER = ""
"""The name that stands for the whole server."""


def grpc_methods(service: Service, watch_seconds: float = _WATCH_SECONDS) -> list[GrpcMethod]:
    """Return the methods of the health service. Every gRPC service shares the server's readiness.

    Args:
        service: Knows whether the server is ready.
        watch_seconds: Interval between Watch's checks, in seconds.
    """
    health = _Health(service, watch_seconds)
    return [
        GrpcMethod(f"{_SERVICE}Check", unary=health.check, verbs=HEALTH),
        GrpcMethod(f"{_SERVICE}List", unary=health.list, verbs=HEALTH),
        GrpcMethod(f"{_SERVICE}Watch", stream=health.watch, verbs=HEALTH),
    ]


class _Health:
    def __init__(self, service: Service, watch_seconds: float) -> None:
        self._service = service
        self._watch_seconds = watch_seconds
        self._watches = 0
        self._names = (SERVER, *service.services)

    def _status(self, name: str) -> str:
        if name not in self._names:
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._service.ready() else "NOT_SERVING"

    async def check(self, message: bytes, call: GrpcCall) -> bytes:
        name = protos.parse(_Request, message).service
        if name not in self._names:
            raise NotFound(
                f"no gRPC service {shown(name)} on this server; it has {', '.join(self._names[1:])}"
            )
        return _serialized(_Response(status=self._status(name)))

    async def list(self, message: bytes, call: GrpcCall) -> bytes:
        protos.parse(_ListRequest, message)
        response = _ListResponse()
        for name in self._names:
            response.statuses[name].CopyFrom(_Response(status=self._status(name)))
        return _serialized(response)

    async def watch(self, messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        """Send the status now and after each change, until the call ends or the server stops."""
        async for message in messages:
            name = protos.parse(_Request, message).service
            break
        else:
            return
        if self._watches >= _MOST_WATCHES:
            raise Overloaded(f"{_MOST_WATCHES} Watch calls are open, which is the maximum; use Check")
        self._watches += 1
        try:
            async for status in self._changes(name):
                yield _serialized(_Response(status=status))
        finally:
            self._watches -= 1

    async def _changes(self, name: str) -> AsyncIterator[str]:
        sent = ""
        while True:
            status = self._status(name)
            if status != sent:
                sent = status
                yield status
            # Do not end when draining starts: the client would watch again at once, on the same connection.
            if self._service.going:
                return  # an open watch would keep the server from stopping
            await asyncio.sleep(self._watch_seconds)


def _serialized(message: protos.Message) -> bytes:
    written: bytes = message.SerializeToString()
    return written
