"""Generations of h2corn: one takes over from another, which ends apart from it and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from typing import ClassVar

import pytest

from headrace.config import ServerConfig
from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import Listeners, listen, listen_together

SECONDS = 120.0
LINUX = os.path.isdir("/proc/self/fd")


class GoOn(asyncio.Event):
    """What the path /slow waits for.

    Attributes:
        awaited: Set when it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.awaited = asyncio.Event()


class Client:
    """One kept connection over HTTP/1.1."""

    open: ClassVar[list[Client]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, address: tuple[str, int]) -> Client:
        made = cls(*await asyncio.open_connection(*address))
        cls.open.append(made)
        return made

    async def ask(self, path: str = "/quick") -> bool:
        """Ask, and say whether the connection ends with the answer."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert await self._reader.readexactly(2) == b"ok", head
        return b"connection: close" in head.lower()

    async def ended(self) -> bool:
        return not await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def _quick(_: HttpCall) -> HttpReply:
    return HttpReply(b"ok")


def serving(
    script: Callable[[H2cornTransport, tuple[str, int], GoOn], Coroutine[object, object, None]],
    *,
    may_join: bool,
    age_seconds: float = 0.0,
    lead_seconds: float = 0.0,
) -> None:
    """Run a script beside a transport, whose path /slow waits for the event."""

    async def run() -> None:
        go_on = GoOn()

        async def slow(_: HttpCall) -> HttpReply:
            go_on.awaited.set()
            await go_on.wait()
            return HttpReply(b"ok")

        application = Application([HttpRoute("GET", "/quick", _quick), HttpRoute("GET", "/slow", slow)], [])
        config = ServerConfig(
            max_connection_age_seconds=age_seconds, drain_lead_seconds=lead_seconds, drain_seconds=20.0
        )
        opened = listen_together("127.0.0.1", 0, "x", 1)[0] if may_join else listen("127.0.0.1", 0, "x")
        with closing(opened):
            transport = H2cornTransport(application, Listeners([[opened]], may_join=may_join), config)
            async with asyncio.timeout(SECONDS):
                await transport.start()
                try:
                    await script(transport, opened.getsockname(), go_on)
                finally:
                    go_on.set()
                    transport.drain()
                    await transport.stop()
                    while Client.open:
                        await Client.open.pop().close()

    asyncio.run(run())


async def retired(transport: H2cornTransport) -> None:
    while transport._going:
        await asyncio.wait({*transport._going})


@pytest.mark.parametrize("may_join", [True, False])
def test_an_old_generation_answers_what_it_has_and_holds_up_nobody_else(may_join: bool) -> None:
    async def script(transport: H2cornTransport, address: tuple[str, int], go_on: GoOn) -> None:
        busy, idle = await Client.at(address), await Client.at(address)
        assert not await idle.ask()
        answer = asyncio.create_task(busy.ask("/slow"))
        await go_on.awaited.wait()
        await transport._replace(0)
        assert await idle.ended(), "it was told nothing, but had nothing on its way either"
        new = await Client.at(address)
        for _ in range(20):
            assert not await new.ask(), "the new generation's connections go on"
        assert not answer.done()
        go_on.set()
        assert await answer
        await retired(transport)
        assert not await new.ask()

    serving(script, may_join=may_join)


def test_while_an_old_generation_goes_its_callers_are_told_with_their_next_answer() -> None:
    async def script(transport: H2cornTransport, address: tuple[str, int], go_on: GoOn) -> None:
        kept = await Client.at(address)
        assert not await kept.ask()
        await transport._replace(0)
        new = await Client.at(address)
        assert not await new.ask(), "new connections are not the old one's any more"
        assert await kept.ask()
        assert await kept.ended()

    serving(script, may_join=True, lead_seconds=15.0)


@pytest.mark.skipif(not LINUX, reason="steers connections as Linux does")
def test_connections_are_shared_out_and_end_in_parts() -> None:
    async def script(transport: H2cornTransport, address: tuple[str, int], go_on: GoOn) -> None:
        assert len(transport._current) == 4
        clients = [await Client.at(address) for _ in range(256)]
        for one in clients:
            assert not await one.ask()
        await transport._replace(0)
        await retired(transport)
        ended = Counter([await _is_over(one) for one in clients])
        assert 20 < ended[True] < 120, "one part of four"

    serving(script, may_join=True, age_seconds=3600.0)


async def _is_over(client: Client) -> bool:
    try:
        return bool(await client.ask())
    except (asyncio.IncompleteReadError, ConnectionError):
        return True


@pytest.mark.rest
@pytest.mark.skipif(not LINUX, reason="counts what Linux shows of a process")
@pytest.mark.parametrize("may_join", [True, False])
def test_what_has_ended_leaves_nothing_behind(may_join: bool) -> None:
    """They are counted in a process of their own: others come and go in that of the tests."""
    program = f"""if True:
        import asyncio, os
        from tests.unit.frontends.transport.test_generations import Client, retired, serving

        def counted():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        async def script(transport, address, go_on):
            for number in range(12):
                client = await Client.at(address)
                await client.ask()
                await transport._replace(0)
                await retired(transport)
                await client.close()
                if number == 3:
                    first = counted()
            while any(now > then for now, then in zip(counted(), first)):
                await asyncio.sleep(0.01)  # the last ones may still be ending
            print(len(transport.opened))

        serving(script, may_join={may_join})
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2


@pytest.mark.parametrize("may_join", [True, False])
def test_while_a_server_takes_over_none_follows_but_one_that_could_not_accept(may_join: bool) -> None:
    """That one has the sockets of before: what the other server was told stays true. It waits for nobody."""

    async def script(transport: H2cornTransport, address: tuple[str, int], go_on: GoOn) -> None:
        assert transport.serving is not None
        await transport.hold()
        used, failed = transport.listeners.used, transport._current[0]
        replacing = asyncio.create_task(transport._replace(0))
        await failed.stop()
        await transport._begin_again(failed, OSError("no descriptors"), transport.serving)
        again = transport._current[0]
        assert (again is failed, replacing.done(), transport.listeners.used) == (False, False, used)
        assert not await (await Client.at(address)).ask()
        transport.release()
        await replacing
        assert transport._current[0] is not again
        await retired(transport)
        assert len(transport.listeners.used) == 1
        assert not await (await Client.at(address)).ask()

    serving(script, may_join=may_join)


def test_stopping_ends_all_generations_and_those_that_were_going() -> None:
    async def script(transport: H2cornTransport, address: tuple[str, int], go_on: GoOn) -> None:
        old = await Client.at(address)
        assert not await old.ask()
        await transport._replace(0)
        new = await Client.at(address)
        assert not await new.ask()
        transport.drain()
        assert await new.ask()
        await transport.stop()
        assert await old.ended()
        assert await new.ended()

    serving(script, may_join=True, lead_seconds=10.0)
