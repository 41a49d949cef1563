"""The new server's part of a handover, against a running server that is slow, or gives up on it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from headrace.base.errors import FailedPrecondition, Unavailable
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import listen
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.server.handover.conversation import Conversation
from headrace.server.handover.giving import PathSocket
from headrace.server.handover.messages import Ask, Given, Go, Hello, Message, Ready, Take, Taken
from headrace.server.handover.taking import Taking
from tests.virtual_loop import run_virtually

SECONDS = 600.0
LOADS, IS_READY = VersionStatus(1, State.LOADING), VersionStatus(1, State.READY)


class Running:
    """A running server that says what the test lets it say."""

    def __init__(self, path: Path, opened: socket.socket) -> None:
        self.at_path = PathSocket(path)
        self.at_path.move()
        self._opened = opened
        self._conversation: Conversation | None = None

    @property
    def conversation(self) -> Conversation:
        assert self._conversation is not None
        return self._conversation

    async def give(self) -> None:
        end, _ = await asyncio.get_running_loop().sock_accept(self.at_path.listener)
        self._conversation = Conversation(end)
        await self.hears(Hello)
        given = Given(protocol=1, headrace="0", sets=1, free=(), leading=(0,), has_many=False, admin=0)
        await self.conversation.say(given)
        await self.conversation.give([self._opened.fileno()] * 2)

    async def hears(self, kind: type[Message]) -> None:
        assert isinstance(await self.conversation.hear(), kind)

    async def tells(self, **ready: tuple[int, ...]) -> None:
        """Answer one question."""
        await self.hears(Ask)
        await self.conversation.say(Ready(ready))


@asynccontextmanager
async def taking_over(path: Path, opened: socket.socket) -> AsyncIterator[tuple[Running, Taking]]:
    running = Running(path, opened)
    config = ServerConfig(handover=path, http_port=0, grpc_port=0)
    taking, _ = await asyncio.gather(Taking.begin(config, "1"), running.give())
    assert taking is not None
    try:
        yield running, taking
    finally:
        await taking.close()
        running.conversation.close()
        running.at_path.close()
        for one in taking.ports.listeners.sets[0]:
            one.close()


Act = Callable[[Running, Taking], Coroutine[None, None, None]]


@pytest.fixture
def played(tmp_path: Path) -> Callable[[Act], None]:
    """Plays a scene with a running server and one that takes over from it."""
    tmp_path.chmod(0o700)

    async def play(act: Act, opened: socket.socket) -> None:
        async with taking_over(tmp_path / "here", opened) as (running, taking):
            await act(running, taking)

    def run(act: Act) -> None:
        with closing(listen("127.0.0.1", 0, "x")) as opened:
            run_virtually(play(act, opened))

    return run


def test_a_successor_waits_until_the_running_server_reports_its_versions(
    played: Callable[[Act], None],
) -> None:
    async def act(running: Running, taking: Taking) -> None:
        ready = asyncio.ensure_future(taking.until_ready(lambda: {}, SECONDS))
        await asyncio.sleep(5)
        assert not ready.done()
        await running.tells(m=(1,))
        with pytest.raises(FailedPrecondition, match="m is served by the running server"):
            await ready

    played(act)


def test_a_running_server_that_does_not_tell_is_named(played: Callable[[Act], None]) -> None:
    async def act(running: Running, taking: Taking) -> None:
        with pytest.raises(Unavailable, match="the running server has not reported its ready versions"):
            await taking.until_ready(lambda: {}, 0.0)

    played(act)


def test_the_last_answer_counts_too(played: Callable[[Act], None]) -> None:
    async def act(running: Running, taking: Taking) -> None:
        here = {"m": [LOADS]}
        ready = asyncio.ensure_future(taking.until_ready(lambda: here, SECONDS))
        await running.tells()
        await ready
        await running.hears(Ask)
        takes = asyncio.ensure_future(taking.take(lambda: here, SECONDS))
        await asyncio.sleep(1)
        await running.conversation.say(Ready({"m": (1,)}))
        for _ in range(10):
            await running.tells(m=(1,))
        here["m"] = [IS_READY]
        while isinstance(message := await running.conversation.hear(), Ask):
            await running.conversation.say(Ready({"m": (1,)}))
        assert isinstance(message, Take)
        await running.conversation.say(Go())
        await running.hears(Taken)
        await takes

    played(act)


async def until_let_go(running: Running, taking: Taking) -> asyncio.Future[None]:
    """Begin to take over until the running server has told the other one to go on."""
    ready = asyncio.ensure_future(taking.until_ready(lambda: {}, SECONDS))
    await running.tells()
    await ready
    taking.ports.listeners.lead_to([1])
    takes = asyncio.ensure_future(taking.take(lambda: {}, SECONDS))
    while isinstance(message := await running.conversation.hear(), Ask):
        await running.conversation.say(Ready({}))
    assert isinstance(message, Take)
    await running.conversation.say(Go())
    return takes


def test_a_running_server_that_has_given_up_goes_on(played: Callable[[Act], None]) -> None:
    async def act(running: Running, taking: Taking) -> None:
        takes = await until_let_go(running, taking)
        running.conversation.close()
        with pytest.raises(Unavailable, match="aborted the handover; the running server keeps serving"):
            await takes
        assert taking.ports.listeners.leading == [0], "new connections are the running server's again"

    played(act)


def test_a_running_server_that_ends_at_this_moment_is_followed(
    played: Callable[[Act], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def act(running: Running, taking: Taking) -> None:
        takes = await until_let_go(running, taking)
        running.at_path.close()
        running.conversation.close()
        await takes
        assert taking.ports.listeners.leading == [1]

    played(act)
    assert "the server that was taken over has ended early" in caplog.text
