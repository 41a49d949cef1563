"""The ASGI application's other side, in memory: a client's events go in, the server's come out."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headrace.config import Limits
from headrace.frontends.calls import GrpcCall, GrpcMethod, HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.asgi import Application

Event = dict[str, Any]
GRPC = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
LEFT: Event = {"type": "http.disconnect"}
SMALL = Limits(max_message_bytes=1000, max_inflight_bytes=2000, body_timeout_seconds=60.0)


def body(*chunks: bytes) -> list[Event]:
    """A body in these chunks, whole."""
    more = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks[:-1]]
    return [*more, {"type": "http.request", "body": chunks[-1] if chunks else b"", "more_body": False}]


def part(chunk: bytes) -> Event:
    """A chunk after which more shall come."""
    return {"type": "http.request", "body": chunk, "more_body": True}


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    payload = gzip.compress(payload, mtime=0) if compressed else payload
    return struct.pack(">BI", compressed, len(payload)) + payload


class Wire:
    """One request's events; what has not been sent yet never comes."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.sent: list[Event] = []
        self.more: asyncio.Queue[Event] = asyncio.Queue()

    async def receive(self) -> Event:
        return self.events.pop(0) if self.events else await self.more.get()

    async def send(self, event: Event) -> None:
        self.sent.append(dict(event))


@dataclass
class Response:
    """What a client saw."""

    sent: Sequence[Event]

    @property
    def status(self) -> int:
        starts = [event for event in self.sent if event["type"] == "http.response.start"]
        assert len(starts) == 1, self.sent
        assert self.sent[0] is starts[0]
        return starts[0]["status"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        assert self.status
        found = self.sent[0]["headers"]
        assert len(dict(found)) == len(found), f"a header is there twice: {found}"
        return dict(found)

    @property
    def body(self) -> bytes:
        bodies = [event for event in self.sent if event["type"] == "http.response.body"]
        assert [event["more_body"] for event in bodies] == [True] * (len(bodies) - 1) + [False]
        return b"".join(event["body"] for event in bodies)

    @property
    def trailers(self) -> dict[bytes, bytes]:
        """gRPC's: after the body, or, where there is only an error, with the headers."""
        if self.sent[0].get("trailers"):
            assert self.sent[-1]["type"] == "http.response.trailers"
            assert not self.sent[-1]["more_trailers"]
            return dict(self.sent[-1]["headers"])
        assert self.body == b""
        return self.headers

    @property
    def grpc(self) -> tuple[int, str]:
        """gRPC's status and message."""
        assert self.status == 200
        assert self.headers[b"content-type"] == b"application/grpc"
        trailers = self.trailers
        return int(trailers[b"grpc-status"]), unquote(trailers.get(b"grpc-message", b"").decode())

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.body
        while rest:
            flag, length = struct.unpack_from(">BI", rest)
            assert flag == 0
            found.append(rest[5 : 5 + length])
            rest = rest[5 + length :]
        return found


@dataclass
class Server:
    """Echoes what it is asked, and remembers the calls."""

    limits: Limits = SMALL
    http_calls: list[HttpCall] = field(default_factory=list)
    grpc_calls: list[GrpcCall] = field(default_factory=list)
    answer: bytes | Exception | None = None
    release: asyncio.Event | None = None
    hold: int = 0
    most_held: int = 0
    call_bytes: int = 0
    most_waiting: int = 1000

    def __post_init__(self) -> None:
        self.application = Application(
            [
                HttpRoute("POST", "/echo/{name}", self.echo),
                HttpRoute("GET", "/things/{name}", self.echo),
                HttpRoute("DELETE", "/things/{name}", self.echo),
            ],
            [GrpcMethod("/x.Echo/Unary", unary=self.unary), GrpcMethod("/x.Echo/Stream", stream=self.stream)],
            self.limits,
        )
        bodies = self.application.bodies
        # Small bodies count, too, and it is always known who waits.
        bodies.call_bytes, bodies.included_bytes, bodies.calm_bytes = self.call_bytes, 0, -1
        bodies.silent.most = bodies.begun.most = self.most_waiting

    @property
    def held_bytes(self) -> int:
        return self.application.bodies.held_bytes

    async def echo(self, call: HttpCall) -> HttpReply:
        self.http_calls.append(call)
        self._hold(call)
        return HttpReply(await self._outcome(call.body), headers=((b"content-type", b"text/x"),))

    async def unary(self, payload: bytes, call: GrpcCall) -> bytes:
        self.grpc_calls.append(call)
        self._hold(call)
        return await self._outcome(payload)

    async def stream(self, payloads: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        self.grpc_calls.append(call)
        async for payload in payloads:
            yield await self._outcome(payload)

    def _hold(self, call: HttpCall | GrpcCall) -> None:
        if self.hold:
            assert call.account is not None
            call.account.hold(self.hold)
            self.most_held = max(self.most_held, self.held_bytes)

    async def _outcome(self, given: bytes) -> bytes:
        if self.release is not None:
            await self.release.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return given if self.answer is None else self.answer

    def scope(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Event:
        return {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
            "query_string": b"q=1",
            "root_path": "",
        }

    def http(
        self,
        method: str,
        path: str,
        events: Iterable[Event] = (),
        headers: Mapping[bytes, bytes] | None = None,
    ) -> Response:
        """One REST request, whole."""
        return asyncio.run(self.exchange(self.scope(method, path, (headers or {}).items()), events))

    def grpc(
        self,
        events: Iterable[Event],
        *,
        path: str = "/x.Echo/Unary",
        headers: Mapping[bytes, bytes] | None = None,
    ) -> Response:
        """One gRPC call, whole."""
        return asyncio.run(self.exchange(self.scope("POST", path, [*GRPC, *(headers or {}).items()]), events))

    async def exchange(self, scope: Event, events: Iterable[Event]) -> Response:
        wire = Wire(events)
        async with asyncio.timeout(30):
            await self.application(scope, wire.receive, wire.send)
        return Response(wire.sent)
