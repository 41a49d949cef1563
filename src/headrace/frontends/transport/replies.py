"""What the transport answers by itself, without a codec: errors of REST, gRPC's OK, and ASGI's lifespan."""

from __future__ import annotations

import math

import msgspec

from headrace.errors import HeadraceError, Refused, Unauthenticated
from headrace.frontends.calls import JSON_HEADERS, HttpReply, NotReady, told
from headrace.frontends.transport.bodies import Event, Receive
from headrace.frontends.transport.sending import Send
from headrace.status import codes

GRPC_OK: Event = {
    "type": "http.response.trailers", "headers": [(b"grpc-status", b"0")], "more_trailers": False
}  # fmt: skip
"""The trailers of a call that is answered and has no notes."""

_CHALLENGE = (b"www-authenticate", b'Bearer realm="headrace"')


def error_reply(error: HeadraceError) -> HttpReply:
    """An error as both REST APIs write it: ``{"error": "…"}``; a check's no as its protocol does."""
    headers: tuple[tuple[bytes, bytes], ...] = JSON_HEADERS
    if isinstance(error, NotReady):
        return HttpReply(error.body, status=codes(error).http)
    if isinstance(error, Refused):
        headers = (
            *JSON_HEADERS,
            (b"retry-after", str(max(1, math.ceil(error.retry_after_seconds))).encode()),
        )
    elif isinstance(error, Unauthenticated):
        headers = (*JSON_HEADERS, _CHALLENGE)
    return HttpReply(msgspec.json.encode({"error": told(error)}), status=codes(error).http, headers=headers)


def grpc_ok(notes: tuple[tuple[bytes, bytes], ...]) -> Event:
    """The trailers of a call that is answered, with its notes."""
    return {**GRPC_OK, "headers": [(b"grpc-status", b"0"), *notes]}


async def live(receive: Receive, send: Send) -> None:
    """The lifespan protocol, in which there is nothing to do."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
