"""The application behind a gate, which admits a call before anything but its headers is read."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from headrace.access.caller import ASKING
from headrace.access.gate import Gate
from headrace.base.errors import HeadraceError
from headrace.config import Limits
from headrace.frontends.calls import Account, GrpcCall, GrpcMethod, HttpCall, HttpRoute
from headrace.frontends.transport.asgi import Application, Scope
from headrace.frontends.transport.bodies import Receive
from headrace.frontends.transport.headers import echo_request_id, is_grpc
from headrace.frontends.transport.responses import Send
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.telemetry.outcomes import Outcomes


class GuardedApplication(Application):
    """An Application that checks each call at a Gate first.

    A separate class, so that a server without keys pays nothing for it per request.
    """

    gate: Gate

    def __init__(
        self,
        routes: Iterable[HttpRoute],
        methods: Iterable[GrpcMethod],
        limits: Limits,
        outcomes: Outcomes,
        slicer: TimeSlicer,
        *,
        gate: Gate,
    ) -> None:
        """Serve these routes and methods behind ``gate``; otherwise as ``Application``."""
        methods = list(methods)
        super().__init__(routes, methods, limits, outcomes, slicer)
        self.gate = gate
        self._admitted = super().answer
        self._verbs = {method.path: method.verbs for method in methods}

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return the coroutine that handles one request, or refuses it at the gate."""
        if scope["type"] == "http":
            return self._through_gate(scope, receive, send)
        return super().answer(scope, receive, send)

    async def _through_gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            verbs = self._verbs.get(scope["path"])
            if verbs is None:
                verbs = self._verbs_of_route(scope)
            caller = self.gate.admit(scope["headers"], verbs)
        except HeadraceError as error:
            await self._refuse(scope, send, error.with_traceback(None))
            return
        ASKING.set(caller)  # for this request's task only
        if caller.limits is None:
            await self._admitted(scope, receive, send)
            return
        try:
            await self._admitted(scope, receive, send)
        finally:
            self.gate.leave(caller)

    def _verbs_of_route(self, scope: Scope) -> int:
        path, root = scope["path"], scope.get("root_path")
        path = path.removeprefix(root) if root else path
        return self._router.match(scope["method"], path).verbs

    async def _refuse(self, scope: Scope, send: Send, error: HeadraceError) -> None:
        headers, path, method = scope["headers"], scope["path"], scope["method"]
        by_grpc = method == "POST" and (path in self._verbs or is_grpc(headers))
        grpc, http = GrpcCall(headers=headers), HttpCall(method, path, {}, headers)
        call = grpc if by_grpc else http
        if self.outcomes.observed:
            self.outcomes.begin(call, method, path, scope.get("client"), is_admitted=False)
        echo_request_id(call)
        if not by_grpc:
            await self._send_reply(self._refusal(http, error), scope, send)
            return
        if self._holding is not None:
            await self._holding.wait()
        await self._send_grpc_error(send, grpc, error)

    async def _messages(
        self, receive: Receive, encoding: bytes, unanswered: deque[Account]
    ) -> AsyncIterator[bytes]:
        """Yield a stream's messages; each is checked at the gate, which ends the stream of an expired key."""
        async for message in super()._messages(receive, encoding, unanswered):
            await self.gate.in_turn(ASKING.get())
            yield message
