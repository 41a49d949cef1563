"""uvicorn under the application: what it says of a connection is what is true of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import cast

import pytest

from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application, Scope, Send
from headrace.frontends.transport.bodies import Receive

pytest.importorskip("uvicorn")
from headrace.frontends.transport.uvicorn import UvicornTransport

_ANSWER = {"type": "http.response.start", "status": 204, "headers": []}


async def _client_of(request: bytes) -> tuple[object, object]:
    """The other end of a connection as it is, and as the application is told."""
    told: list[object] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        told.append(tuple(scope["client"]))
        await send(_ANSWER)
        await send({"type": "http.response.body", "body": b""})

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        transport = UvicornTransport(cast("Application", application), listener, ServerConfig())
        await transport.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        mine = writer.get_extra_info("sockname")
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await transport.stop()
    return mine, *told


def test_a_caller_is_the_other_end_of_the_connection_and_no_header() -> None:
    request = b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: somebody else\r\nconnection: close\r\n\r\n"
    mine, told = asyncio.run(_client_of(request))
    assert told == mine
