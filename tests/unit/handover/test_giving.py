"""The running server's part of a handover: how long it is held up, and where it listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace.errors import ConfigError, Unavailable
from headrace.frontends.transport.listeners import Listeners
from headrace.frontends.transport.listening import listen
from headrace.handover import giving
from headrace.handover.giving import Giving, PathSocket
from headrace.handover.messages import Ask, Hello
from headrace.handover.taking import running_at


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


def test_whoever_asks_for_ever_holds_it_up_only_so_long(
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


def test_a_path_that_cannot_be_had_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    at_path = PathSocket(tmp_path / "here")
    (tmp_path / "here").mkdir()
    with pytest.raises(ConfigError, match="cannot listen at"):
        at_path.move()
    assert [one.name for one in tmp_path.iterdir()] == ["here"]
    with pytest.raises(ConfigError, match="cannot listen at"):
        PathSocket(tmp_path / ("x" * 120))
