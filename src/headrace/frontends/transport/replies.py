"""What the transport answers by itself, without a codec: errors of REST, and ASGI's lifespan."""

from __future__ import annotations

import math

import msgspec

from headrace.errors import HeadraceError, Refused, Unauthenticated
from headrace.frontends.calls import JSON_HEADERS, HttpReply, NotReady, told
from headrace.frontends.transport.bodies import Receive
from headrace.frontends.transport.sending import Send
from headrace.status import codes

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


async def live(receive: Receive, send: Send) -> None:
    """The lifespan protocol, in which there is nothing to do."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
