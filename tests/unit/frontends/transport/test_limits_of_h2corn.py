"""What h2corn limits of itself is what the table of limits tells, and connections are as many as may be."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from contextlib import closing, suppress

import pytest

from headrace.config import Limits, ServerConfig
from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.admin_listeners import AdminPorts
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.h2corn import H2cornTransport, _configuration, _threads_for, _window_bytes
from headrace.frontends.transport.listening_sockets import Listeners, listen

SECONDS = 20.0
MOST = 3
ASKED = b"GET /quick HTTP/1.1\r\nhost: a\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _quick(_: HttpCall) -> HttpReply:
    return HttpReply(b"ok")


def application() -> Application:
    return Application([HttpRoute("GET", "/quick", _quick)], [])


def config(most_connections: int = 0) -> ServerConfig:
    return ServerConfig(
        admin_port=0,
        drain_seconds=1.0,
        drain_lead_seconds=0.0,
        limits=Limits(max_connections=most_connections, body_timeout_seconds=7.0),
    )


async def answered(streams: Streams) -> bool:
    """Whether a connection is answered; not if it is reset."""
    reader, writer = streams
    with suppress(ConnectionError):
        writer.write(ASKED)
        head = await reader.readuntil(b"\r\n\r\n")
        return head.startswith(b"HTTP/1.1 200") and await reader.readexactly(2) == b"ok"
    return False


async def close(streams: Streams) -> None:
    streams[1].close()
    with suppress(ConnectionError):
        await streams[1].wait_closed()


async def crowd(address: tuple[str, int], most: int) -> None:
    """Have as many connections as may be, then one too many, which waits until another one ends."""
    kept = [await asyncio.open_connection(*address) for _ in range(most)]
    assert all([await answered(one) for one in kept])
    late = await asyncio.open_connection(*address)
    waiting = asyncio.create_task(answered(late))
    await asyncio.wait((waiting,), timeout=0.5)
    assert not waiting.done(), "neither answered nor ended"
    await close(kept.pop())
    assert await waiting
    for one in (late, *kept):
        assert await answered(one)
        await close(one)


def serving(transport: H2cornTransport, script: Coroutine[object, object, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            await transport.start()
            try:
                await script
            finally:
                transport.drain()
                await transport.stop()

    asyncio.run(run())


def test_no_more_connections_are_answered_than_may_be() -> None:
    with closing(listen("127.0.0.1", 0, "x")) as opened:
        transport = H2cornTransport(application(), Listeners([[opened]], may_join=False), config(MOST))
        serving(transport, crowd(opened.getsockname(), MOST))


def test_ports_of_administration_have_few_connections() -> None:
    """Whatever the other ports may have: nobody can take all descriptors there."""
    ports = AdminPorts(config())
    try:
        (transport,) = ports.transports(application(), None)
        assert ports.address is not None
        serving(transport, crowd(ports.address, 16))
    finally:
        ports.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit_request_fields", 100),
        ("limit_request_field_size", 32 * 1024),
        ("limit_request_head_size", 1024 * 1024),
        ("limit_request_line", 16 * 1024),
        ("h2_max_header_list_size", 1024 * 1024),
        ("h2_max_header_block_size", 1024 * 1024),
        ("max_concurrent_streams", 256),
        ("timeout_handshake", 15.0),
        ("timeout_keep_alive", 120),
        ("timeout_request_header", 120),
        ("h2_timeout_response_stall", 60.0),
        ("h2_initial_connection_window_size", 4 * 1024 * 1024),
        ("h2_initial_stream_window_size", 1024 * 1024),
        ("h2_max_inbound_frame_size", 256 * 1024),
    ],
)
def test_what_h2corn_limits_is_what_is_told(name: str, value: float) -> None:
    """Most are its defaults, and a new release may have others."""
    made = _configuration(application(), [0], config(), 10, {})
    assert getattr(made, name) == value
    assert {one.h2_timeout_response_stall for one in made.request_policies} == {60.0}
    assert made.request_policies[-1].timeout_request_body_idle == 7.0


@pytest.mark.parametrize("inflight_mib", [64, 512])
def test_a_connection_is_told_its_windows_and_frames(inflight_mib: int) -> None:
    told: dict[str, int] = {}

    async def ask(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))  # empty SETTINGS
        while len(told) < 3:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == 8:  # WINDOW_UPDATE of the connection, beside the 65,535 bytes of the protocol
                told["connection"] = 65_535 + int.from_bytes(payload, "big")
            elif head[3] == 4 and payload:
                settings = dict(struct.iter_unpack(">HI", payload))
                told["stream"], told["frame"] = settings[4], settings[5]
        writer.close()

    with closing(listen("127.0.0.1", 0, "x")) as opened:
        limits = Limits(max_message_bytes=1 << 20, max_inflight_bytes=inflight_mib << 20)
        made = ServerConfig(limits=limits, drain_seconds=1.0, drain_lead_seconds=0.0)
        transport = H2cornTransport(application(), Listeners([[opened]], may_join=False), made)
        serving(transport, ask(opened.getsockname()))
    window = (1 if inflight_mib == 64 else 4) << 20
    assert told == {"connection": window, "stream": window // 4, "frame": window // 16}


@pytest.mark.parametrize(
    ("inflight_mib", "window_kib"),
    [(1, 1024), (64, 1024), (128, 1024), (256, 2048), (512, 4096), (1 << 20, 4096)],
)
def test_windows_are_a_part_of_what_requests_may_hold(inflight_mib: int, window_kib: int) -> None:
    assert _window_bytes(inflight_mib << 20) == window_kib << 10


@pytest.mark.parametrize(
    ("processors", "threads"), [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (128, 4)]
)
def test_threads_of_connections_by_processors(processors: int, threads: int) -> None:
    assert _threads_for(processors) == threads


def test_the_threads_of_a_process_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota may change while a server runs, and another generation of connections follows."""
    before = _configuration(application(), [0], config(), 10, {}).runtime_threads
    monkeypatch.setattr("headrace.base.cpus.available", lambda: 128 if before == 1 else 1)
    assert _configuration(application(), [0], config(), 10, {}).runtime_threads == before
