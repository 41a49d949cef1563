"""Listening sockets: what happens to connections around the moment in which one closes."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import ExitStack

import pytest

from headrace.base.errors import ConfigError
from headrace.frontends.transport.listening_sockets import (
    listen,
    take_no_more,
    until_accepted,
    until_first_answers,
)

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="packet filters are Linux's")


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with listen("127.0.0.1", 0, "http_port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^http_port: port {port} .* is taken, .* --http-port N \(0 for"
        ):
            listen("127.0.0.1", port, "http_port")
        with pytest.raises(
            ConfigError, match=rf"^grpc_port: port {port} .* is taken, .* --grpc-port N \(0 for"
        ):
            listen("127.0.0.1", port, "grpc_port")


def test_an_address_that_is_not_here_is_named_with_the_way_out() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .*; choose others with --host and --http-port"
    ):
        listen("192.0.2.1", 0, "http_port")


@LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_waits_is_accepted_and_nothing_comes_after_it(host: str) -> None:
    with listen(host, 0, "http_port") as listener:
        address = listener.getsockname()[:2]
        waiting = [socket.create_connection(address, timeout=30) for _ in range(3)]
        waiting[0].sendall(b"sent before")
        take_no_more(listener)
        with pytest.raises(TimeoutError):  # neither made nor refused
            socket.create_connection(address, timeout=0.2)
        for one in waiting:
            accepted, _ = listener.accept()
            one.sendall(b", and after")
            expected = b"sent before, and after" if one is waiting[0] else b", and after"
            accepted.settimeout(30)
            assert accepted.makefile("rb").read(len(expected)) == expected
            accepted.close()
            one.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=30)


@LINUX
def test_one_waits_until_all_are_accepted_but_not_for_ever() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with listen("127.0.0.1", 0, "http_port") as listener:
            address = listener.getsockname()
            await asyncio.wait_for(until_accepted(listener, 60), 120)
            with socket.create_connection(address), socket.create_connection(address):
                before = loop.time()
                await until_accepted(listener, 0.1)
                assert loop.time() - before >= 0.1, "two were waiting"
                emptied = asyncio.create_task(until_accepted(listener, 60))
                for _ in range(2):
                    await asyncio.sleep(0)
                    assert not emptied.done()
                    listener.accept()[0].close()
                await asyncio.wait_for(emptied, 120)

    asyncio.run(scenario())


@LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_one_waits_until_all_have_got_something_and_all_is_read(host: str) -> None:
    async def scenario() -> None:
        with listen(host, 0, "http_port") as listener, listen(host, 0, "grpc_port") as other:
            connected = [socket.create_connection(listener.getsockname()[:2]) for _ in range(3)]
            accepted = [listener.accept()[0] for _ in connected]
            _, asks, leaves = connected
            await asyncio.wait_for(until_first_answers([other], 60), 120)  # where nobody has connected
            done = asyncio.create_task(until_first_answers([listener], 60))
            await _still_waits(done)
            asks.sendall(b"half of a")
            assert accepted[1].recv(64) == b"half of a"
            await _still_waits(done)
            asks.sendall(b" question")
            accepted[1].sendall(b"an answer")
            accepted[0].sendall(b"an answer")
            leaves.close()
            accepted[2].close()
            await _still_waits(done)  # something is unread
            accepted[1].recv(64)
            await asyncio.wait_for(done, 120)
            for one in (*connected, *accepted):
                one.close()

    asyncio.run(scenario())


async def _still_waits(task: asyncio.Task[None]) -> None:
    _, pending = await asyncio.wait({task}, timeout=0.1)
    assert pending


@LINUX
def test_who_never_asks_is_waited_for_only_for_a_while() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with ExitStack() as opened:
            listener = opened.enter_context(listen("127.0.0.1", 0, "http_port"))
            silent = opened.enter_context(socket.create_connection(listener.getsockname()))
            accepted = opened.enter_context(listener.accept()[0])
            before = loop.time()
            await until_first_answers([listener], 0.1)
            assert loop.time() - before >= 0.1
            await asyncio.wait_for(until_first_answers([listener], 0.0), 120)
            accepted.sendall(b"x")  # its descriptor is as it was
            assert silent.recv(1) == b"x"

    asyncio.run(scenario())
