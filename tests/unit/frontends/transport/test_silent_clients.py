"""Clients that say or read nothing, over real sockets: h2corn ends them, with its times set to a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from headrace.config import ServerConfig
from headrace.frontends.calls import GrpcCall, GrpcMethod, HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport import h2corn
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import Listeners, listen
from tests.faults.strict_callers import (
    _DATA,
    _END_HEADERS,
    _END_STREAM,
    _GOAWAY,
    _HEADERS,
    _PREFACE,
    _RESET,
    _SETTINGS,
    _WINDOW,
    _frame,
    _text,
)

SECONDS = 13.0
"""Less than whatever else ends a connection (15 s), and so what would end one if these times did not."""
IDLE_SECONDS = 1
LARGE = b"a" * 200_000
"""More than a client takes that never says that it has read: 65,535 bytes."""
ASKED = b"GET /quick HTTP/1.1\r\nhost: a\r\n\r\n"

Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def quick(_: HttpCall) -> HttpReply:
    return HttpReply(b"ok")


async def large(_: HttpCall) -> HttpReply:
    return HttpReply(LARGE)


async def large_message(_message: bytes, _: GrpcCall) -> bytes:
    return LARGE


def application() -> Application:
    routes = [HttpRoute("GET", "/quick", quick), HttpRoute("GET", "/large", large)]
    return Application(routes, [GrpcMethod("/a.B/Large", unary=large_message)])


def run(client: Client) -> None:
    """Serve one client with the real server of HTTP/1.1, HTTP/2 and gRPC."""

    async def serve() -> None:
        config = ServerConfig(drain_seconds=1.0, drain_lead_seconds=0.0)
        with closing(listen("127.0.0.1", 0, "x")) as opened:
            transport = H2cornTransport(application(), Listeners([[opened]], may_join=False), config)
            async with asyncio.timeout(SECONDS):
                await transport.start()
                try:
                    streams = await asyncio.open_connection(*opened.getsockname())
                    await client(*streams)
                    streams[1].close()
                finally:
                    transport.drain()
                    await transport.stop()

    asyncio.run(serve())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times that stand in the table of limits, made a second."""
    monkeypatch.setattr(h2corn, "IDLE_SECONDS", IDLE_SECONDS)
    monkeypatch.setattr(h2corn, "_RESPONSE_STALL_SECONDS", float(IDLE_SECONDS))


async def frames(reader: asyncio.StreamReader) -> list[tuple[int, int]]:
    """Kinds and streams of all frames up to the end of the connection."""
    found = []
    while head := await reader.read(9):
        head += await reader.readexactly(9 - len(head))
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        found.append((head[3], int.from_bytes(head[5:9], "big")))
    return found


async def frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], int.from_bytes(head[5:9], "big")


def asked(stream: int, path: str) -> bytes:
    head = b"\x82\x86" + _text(b"\x04", path) + _text(b"\x01", "localhost")
    return _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, head)


def called(stream: int, path: str) -> bytes:
    """A gRPC call with an empty message."""
    head = b"\x83\x86" + _text(b"\x04", path) + _text(b"\x01", "localhost")
    head += b"\x00" + _text(_text(b"", "content-type"), "application/grpc")
    head += b"\x00" + _text(_text(b"", "te"), "trailers")
    return _frame(_HEADERS, _END_HEADERS, stream, head) + _frame(_DATA, _END_STREAM, stream, bytes(5))


@pytest.mark.usefixtures("short")
def test_a_kept_connection_over_http1_is_closed_when_it_is_silent() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ASKED)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.read() == b"ok"

    run(client)


@pytest.mark.usefixtures("short")
def test_a_head_over_http1_that_does_not_go_on_ends_its_connection() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ASKED[:20])
        said = await reader.read()
        assert said == b"" or said.startswith(b"HTTP/1.1 408"), said

    run(client)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("request_", [asked(1, "/quick"), called(1, "/a.B/None")], ids=["HTTP/2", "gRPC"])
def test_a_silent_connection_over_http2_ends_with_goaway(request_: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0) + request_)
        found = await frames(reader)
        assert (_HEADERS, 1) in found
        assert found[-1] == (_GOAWAY, 0)

    run(client)


@pytest.mark.usefixtures("short")
def test_headers_over_http2_that_do_not_go_on_end_their_connection() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_HEADERS, _END_STREAM, 1, b"\x82\x86"))
        assert (_HEADERS, 1) not in await frames(reader)

    run(client)


@pytest.mark.parametrize("request_", [asked(1, "/large"), called(1, "/a.B/Large")], ids=["HTTP/2", "gRPC"])
def test_an_answer_that_is_not_read_is_reset_and_its_connection_goes_on(
    request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client never says that it has read: the stream's window stays used up."""
    monkeypatch.setattr(h2corn, "_RESPONSE_STALL_SECONDS", 1.0)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = _frame(_WINDOW, 0, 0, (1 << 24).to_bytes(4, "big"))  # of the connection, for other streams
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0) + room + request_)
        found = [await frame(reader)]
        while found[-1] != (_RESET, 1):
            found.append(await frame(reader))
        assert (_DATA, 1) in found
        writer.write(asked(3, "/quick"))
        while await frame(reader) != (_DATA, 3):
            pass

    run(client)
