"""The application for web pages of other origins (CORS), with answers to browsers' preflight requests.

Separate classes, so that a server without CORS pays nothing for it per request.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.config import Limits
from headrace.config.server import ANY_ORIGIN
from headrace.frontends.calls import GrpcMethod, HttpReply, HttpRoute
from headrace.frontends.transport.asgi import Application, Scope
from headrace.frontends.transport.bodies import Receive
from headrace.frontends.transport.guarded_app import GuardedApplication
from headrace.frontends.transport.responses import Send
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.access.gate import Gate

Pairs = tuple[tuple[bytes, bytes], ...]
Parts = tuple[Iterable[HttpRoute], Iterable[GrpcMethod], Limits, Outcomes, TimeSlicer]
"""Arguments of Application, in order."""

_VARY = (b"vary", b"origin")
_EXPOSED = (
    b"access-control-expose-headers",
    b"headrace-answered-by, inference-header-content-length, retry-after, x-request-id",
)
_NAMES = re.compile(rb"[A-Za-z0-9_-]{1,64}( ?, ?[A-Za-z0-9_-]{1,64}){0,63}")
_USUAL_NAMES = (
    b"authorization, content-encoding, content-type, headrace-priority, inference-header-content-length, "
    b"x-api-key, x-request-id, x-request-timeout-ms"
)
_REMEMBERED_SECONDS = b"600"


class Origins:
    """The origins whose pages may send requests, and the CORS headers that tell browsers so."""

    def __init__(self, origins: Iterable[str]) -> None:
        """Allow some origins.

        Args:
            origins: Origins as in the settings.
        """
        self._known = frozenset(origin.encode() for origin in origins)
        self._anybody = ANY_ORIGIN.encode() in self._known

    def allowed(self, origin: bytes | None) -> Pairs:
        """Return the headers that allow an origin; none if it is not allowed.

        Args:
            origin: Origin as sent by the browser; None if there was none.
        """
        if origin is None:
            return ()
        if self._anybody:
            return ((b"access-control-allow-origin", b"*"),)
        return ((b"access-control-allow-origin", origin),) if origin in self._known else ()

    def with_answer(self, origin: bytes | None) -> Pairs:
        """Return the headers of a response, with ``Vary`` if it depends on the origin, for caches."""
        allowed = self.allowed(origin)
        said = (*allowed, _EXPOSED) if allowed else ()
        return said if self._anybody else (*said, _VARY)

    def with_preflight(self, origin: bytes, methods: Sequence[str], names: bytes) -> Pairs:
        """Return the headers of the response to a preflight request.

        Args:
            origin: Origin as sent by the browser; an allowed one.
            methods: Methods of the path.
            names: Headers that the page wants to send. Any are allowed, which grants no access: headrace uses
                no cookies, and a page must have its own key.
        """
        return (
            *self.allowed(origin),
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", names if _NAMES.fullmatch(names) else _USUAL_NAMES),
            (b"access-control-max-age", _REMEMBERED_SECONDS),
            (b"vary", b"origin, access-control-request-method, access-control-request-headers"),
        )


class SharedApplication(Application):
    """An Application that also serves web pages of some origins."""

    origins: Origins

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return the coroutine that handles one request or preflight request."""
        if scope["type"] != "http":
            return super().answer(scope, receive, send)
        headers, method = dict(scope["headers"]), scope["method"]
        origin = headers.get(b"origin")
        if origin is None and method == "POST":  # not from a page, and not cacheable: above all gRPC
            return super().answer(scope, receive, send)
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            root = scope.get("root_path")
            path = scope["path"].removeprefix(root) if root else scope["path"]
            methods = self._router.match("OPTIONS", path).allowed
            if methods and origin is not None and self.origins.allowed(origin):
                names = headers.get(b"access-control-request-headers", b"")
                said = self.origins.with_preflight(origin, methods, names)
                return self._send_reply(HttpReply(b"", headers=said), scope, send)
        said = self.origins.with_answer(origin)
        return super().answer(scope, receive, _saying(said, send) if said else send)


class GuardedSharedApplication(SharedApplication, GuardedApplication):
    """The same behind a gate: preflight requests need no key, requests of pages do."""


def shared(origins: Iterable[str], gate: Gate | None, parts: Parts) -> Application:
    """Return an application that also serves web pages of some origins.

    Args:
        origins: Origins as in the settings.
        gate: Access check for calls; None admits every call.
        parts: Arguments of Application.
    """
    made = SharedApplication(*parts) if gate is None else GuardedSharedApplication(*parts, gate=gate)
    made.origins = Origins(origins)
    return made


def _saying(said: Pairs, send: Send) -> Send:
    async def sending(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event["headers"], *said]}
        await send(event)

    return sending
