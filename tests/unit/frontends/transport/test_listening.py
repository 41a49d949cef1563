"""Listening sockets: what happens to connections around the moment in which one closes."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from headrace.errors import ConfigError
from headrace.frontends.transport.listening import listen, take_no_more, until_accepted

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
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .*; --host and --http-port say"):
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
            await asyncio.wait_for(until_accepted(listener, 60), 30)
            with socket.create_connection(address), socket.create_connection(address):
                before = loop.time()
                await until_accepted(listener, 0.1)
                assert loop.time() - before >= 0.1, "two were waiting"
                emptied = asyncio.create_task(until_accepted(listener, 60))
                for _ in range(2):
                    await asyncio.sleep(0)
                    assert not emptied.done()
                    listener.accept()[0].close()
                await asyncio.wait_for(emptied, 30)

    asyncio.run(scenario())
