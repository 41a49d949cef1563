"""The application for web pages of other origins (CORS): browsers ask before they let a page ask.

Classes of their own, so that a server that shares nothing has nothing of it on a request's way.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.config import Limits
from headrace.config.cors import ANY_ORIGIN
from headrace.frontends.calls import GrpcMethod, HttpReply, HttpRoute
from headrace.frontends.transport.asgi import Application, Scope
from headrace.frontends.transport.bodies import Receive
from headrace.frontends.transport.guarded import GuardedApplication
from headrace.frontends.transport.sending import Send
from headrace.frontends.wire.lane import Lane
from headrace.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.access.gate import Gate

Pairs = tuple[tuple[bytes, bytes], ...]
Parts = tuple[Iterable[HttpRoute], Iterable[GrpcMethod], Limits, Outcomes, Lane]
"""What an Application is made of, in the order of its arguments."""

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
    """Whose pages may ask; says the headers that tell browsers so."""

    def __init__(self, origins: Iterable[str]) -> None:
        """Know some origins.

        Args:
            origins: As the settings have them.
        """
        self._known = frozenset(origin.encode() for origin in origins)
        self._anybody = ANY_ORIGIN.encode() in self._known

    def allowed(self, origin: bytes | None) -> Pairs:
        """What says that pages of an origin may ask; nothing where they may not.

        Args:
            origin: As a browser sends it; None if none came.
        """
        if origin is None:
            return ()
        if self._anybody:
            return ((b"access-control-allow-origin", b"*"),)
        return ((b"access-control-allow-origin", origin),) if origin in self._known else ()

    def with_answer(self, origin: bytes | None) -> Pairs:
        """What an answer says: caches must not give one origin's to another."""
        allowed = self.allowed(origin)
        said = (*allowed, _EXPOSED) if allowed else ()
        return said if self._anybody else (*said, _VARY)

    def with_preflight(self, origin: bytes, methods: Sequence[str], names: bytes) -> Pairs:
        """What the answer says when a browser asks what it may let a page do.

        Args:
            origin: As the browser sends it; an allowed one.
            methods: What the path takes.
            names: The headers that the page wants to send. Whatever they are, they permit nothing: there are
                no cookies here, and a key is one that the page itself has.
        """
        return (
            *self.allowed(origin),
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", names if _NAMES.fullmatch(names) else _USUAL_NAMES),
            (b"access-control-max-age", _REMEMBERED_SECONDS),
            (b"vary", b"origin, access-control-request-method, access-control-request-headers"),
        )


class SharedApplication(Application):
    """An Application that answers web pages of some origins, too."""

    origins: Origins

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer one request, or a browser that asks what it may let a page do."""
        if scope["type"] != "http":
            return super().answer(scope, receive, send)
        headers, method = dict(scope["headers"]), scope["method"]
        origin = headers.get(b"origin")
        if origin is None and method == "POST":  # no page's, and nothing that caches keep: above all gRPC
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
    """The same behind a gate: browsers ask without a key, pages with theirs."""


def shared(origins: Iterable[str], gate: Gate | None, parts: Parts) -> Application:
    """An application that answers web pages of some origins, too.

    Args:
        origins: As the settings have them.
        gate: What calls pass; None if all may.
        parts: What it is made of.
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
