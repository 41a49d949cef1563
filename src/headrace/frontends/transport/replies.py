"""Replies of the transport itself, without a codec: REST errors, and ASGI's lifespan protocol."""

from __future__ import annotations

import math

import msgspec

from headrace.base.errors import HeadraceError, Refused, Unauthenticated
from headrace.base.status_codes import codes
from headrace.frontends.calls import JSON_HEADERS, HttpReply, NotReady, told
from headrace.frontends.transport.bodies import Receive
from headrace.frontends.transport.responses import Send

INTERNAL = "internal error; the server's log says more"
"""The text of an error that is a bug, for callers."""

_CHALLENGE = (b"www-authenticate", b'Bearer realm="headrace"')


def error_reply(error: HeadraceError) -> HttpReply:
    """Return an error as both REST APIs write it, ``{"error": "…"}``; NotReady has its protocol's body."""
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
    """Answer the lifespan protocol, which requires no work."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
