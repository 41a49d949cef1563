"""The running server's part of a handover: how long it is held up, and where it listens."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, Unavailable
from headrace.frontends.transport.listening_sockets import Listeners, listen
from headrace.server.handover import giving
from headrace.server.handover.conversation import Conversation
from headrace.server.handover.giving import Giving, PathSocket
from headrace.server.handover.messages import Ask, Given, HandoverRefused, Hello
from headrace.server.handover.taking import running_at
from tests.virtual_loop import run_virtually


class Sockets:
    """A side that has sockets, and nothing to serve there."""

    def __init__(self, opened: socket.socket) -> None:
        self.listeners = Listeners([[opened, opened]], may_join=False)
        self.admin: list[socket.socket] = []
        self.held = asyncio.Event()
        self.free = asyncio.Event()

    def ready(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    async def hold(self) -> None:
        self.held.set()

    def release(self) -> None:
        self.free.set()

    def leave(self) -> None:
        raise AssertionError("nobody has taken over")


def test_a_successor_that_never_takes_over_is_dropped_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving, "_LONGEST_SECONDS", 3.0)

    async def scenario(opened: socket.socket) -> None:
        side, at_path = Sockets(opened), PathSocket(tmp_path / "here")
        at_path.move()
        waits = Giving(at_path, side, "1")
        taker = await running_at(tmp_path / "here")
        assert taker is not None
        async with asyncio.timeout(20):
            await taker.say(Hello("1", (1,)))
            await taker.hear()
            for one in await taker.take(2):
                socket.close(one)
            assert side.held.is_set()
            assert not side.free.is_set()
            await taker.say(Ask())
            with suppress(Unavailable):  # it has not read all of that
                while await taker.hear() is not None:
                    await taker.say(Ask())
            await side.free.wait()
        taker.close()
        assert not waits.taken.done()
        await waits.close()

    with closing(listen("127.0.0.1", 0, "x")) as opened:
        tmp_path.chmod(0o700)
        asyncio.run(scenario(opened))
    assert list(tmp_path.iterdir()) == []


class Shortage:
    """A process without a free descriptor: nothing can be accepted until some time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.until = 0.0
        self.tries = 0
        accept = socket.socket.accept

        def tried(listener: socket.socket) -> tuple[socket.socket, object]:
            self.tries += 1
            if asyncio.get_running_loop().time() < self.until and self.tries < 1000:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", tried)


def test_a_server_without_descriptors_tries_again_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shortage = Shortage(monkeypatch)

    async def scenario(opened: socket.socket) -> None:
        now, at_path = asyncio.get_running_loop().time, PathSocket(tmp_path / "here")
        at_path.move()
        waits = Giving(at_path, Sockets(opened), "1")
        shortage.until = now() + 3.5
        taker = await running_at(tmp_path / "here")
        assert taker is not None
        await taker.say(Hello("1", (1,)))
        assert isinstance(await taker.hear(), Given)
        assert (now(), shortage.tries) == (1004.0, 5)
        for one in await taker.take(2):
            socket.close(one)
        taker.close()
        shortage.until = now() + 3600
        again = await running_at(tmp_path / "here")
        assert again is not None
        await asyncio.sleep(1.5)
        await waits.close()
        again.close()
        await asyncio.sleep(5)
        assert shortage.tries == 7

    with closing(listen("127.0.0.1", 0, "x")) as opened:
        tmp_path.chmod(0o700)
        run_virtually(scenario(opened))
    told = [one.message for one in caplog.records if one.levelname == "ERROR"]
    once = "a successor cannot be accepted: [Errno 24] Too many open files; trying again every second"
    assert told == [once, once], "once for each shortage"


def test_a_path_that_cannot_be_had_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    at_path = PathSocket(tmp_path / "here")
    (tmp_path / "here").mkdir()
    with pytest.raises(ConfigError, match="cannot listen at"):
        at_path.move()
    assert [one.name for one in tmp_path.iterdir()] == ["here"]
    with pytest.raises(ConfigError, match="cannot listen at"):
        PathSocket(tmp_path / ("x" * 120))


def test_only_servers_of_the_same_user_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(opened: socket.socket) -> None:
        at_path = PathSocket(tmp_path / "here")
        at_path.move()
        waits = Giving(at_path, Sockets(opened), "1")
        taker = await running_at(tmp_path / "here")
        assert taker is not None
        with monkeypatch.context() as patch:
            patch.setattr(Conversation, "user", os.geteuid() + 1)
            with pytest.raises(ConfigError, match="expected a server of the same user at"):
                await running_at(tmp_path / "here")
            async with asyncio.timeout(20):
                await taker.say(Hello("1", (1,)))
                assert await taker.hear() == HandoverRefused("expected a server of the same user")
        taker.close()
        await waits.close()

    with closing(listen("127.0.0.1", 0, "x")) as opened:
        tmp_path.chmod(0o700)
        asyncio.run(scenario(opened))
