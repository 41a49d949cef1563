"""The new server's part: it takes the sockets of a running one, and its place when all is ready."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from headrace.config import ServerConfig
from headrace.errors import ConfigError, FailedPrecondition, HeadraceError, Unavailable
from headrace.frontends.transport.listeners import Listeners, Ports
from headrace.frontends.transport.listening import take_again
from headrace.handover import readiness
from headrace.handover.conversation import Conversation
from headrace.handover.giving import expect_own_directory
from headrace.handover.messages import (
    PROTOCOLS,
    Ask,
    Given,
    Go,
    Hello,
    Message,
    Ready,
    Refused,
    Take,
    Taken,
)
from headrace.lifecycle.state import VersionStatus

_log = logging.getLogger(__name__)

_MessageT = TypeVar("_MessageT", bound=Message)
_ASK_SECONDS = 0.2
_GOES_ON = "the running server goes on as it was"


async def running_at(path: Path) -> Conversation | None:
    """Ask whether a server waits at a path for another one that takes its place.

    Returns:
        A conversation with it; None if nobody is there.

    Raises:
        ConfigError: Something else is there, of another user, or in a directory that others can write.
        Unavailable: It does not take the connection.
    """
    expect_own_directory(path)
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            expected = "expected a path at which nothing is, or the socket of a running server"
            raise ConfigError(f"handover: {expected}, but {path} is something else: remove it")
    except FileNotFoundError:
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):  # what a killed server has left
        end.close()
        return None
    except OSError as error:
        end.close()
        raise Unavailable(f"handover: the server at {path} does not take the connection: {error}") from error
    conversation = Conversation(end)
    if conversation.user != os.geteuid():
        conversation.close()
        raise ConfigError(f"handover: expected a server of the same user at {path}")
    return conversation


class Taking:
    """Takes the place of a running server, step by step. Until the last one, that goes on as it was.

    Attributes:
        ports: The sockets.
    """

    def __init__(self, conversation: Conversation, given: Given, ports: Ports) -> None:
        """See ``begin``."""
        self._conversation = conversation
        self._given = given
        self.ports = ports
        self._there: Mapping[str, Sequence[int]] = {}
        self._enough = asyncio.Event()
        self._asking = asyncio.create_task(self._ask())
        self._leaving: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, config: ServerConfig, release: str) -> Taking | None:
        """Take the sockets of the server that runs, if there is one.

        Args:
            config: The settings of the new server.
            release: Which headrace it is.

        Raises:
            ConfigError: The running server listens elsewhere than these settings say.
            Unavailable: It does not answer.
            FailedPrecondition: It refuses.
        """
        if config.handover is None:
            return None
        conversation = await running_at(config.handover)
        if conversation is None:
            return None
        try:
            await conversation.say(Hello(release, PROTOCOLS))
            given = await conversation.hear()
            if isinstance(given, Refused):
                raise FailedPrecondition(f"handover: the running server refuses: {given.why}")
            if not isinstance(given, Given) or given.protocol not in PROTOCOLS or given.sets < 1:
                raise Unavailable("handover: what runs at the path does not answer as a server would")
            descriptors = await conversation.take(2 * given.sets + given.admin)
            ports = _ports(given, [socket.socket(fileno=one) for one in descriptors])
            _expect_same_place(ports.listeners.sets[0], config)
        except BaseException:
            conversation.close()
            raise
        _log.info("taking over from a running server", extra={"release": given.headrace})
        return cls(conversation, given, ports)

    async def _ask(self) -> None:
        """Ask again and again what is ready there; fails when the running server does."""
        while not self._enough.is_set():
            await self._conversation.say(Ask())
            answer = _expected(await self._conversation.hear(), Ready)
            self._there = answer.models
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_SECONDS):
                    await self._enough.wait()

    async def until_ready(
        self, here: Callable[[], Mapping[str, Sequence[VersionStatus]] | None], seconds: float
    ) -> None:
        """Wait until all is ready here that is ready there.

        Args:
            here: Tells of the models' versions here; None as long as they have not been tried.
            seconds: How long.

        Raises:
            FailedPrecondition: Something has failed here.
            Unavailable: It took too long, or the running server is gone or stuck.
        """
        until = time.monotonic() + seconds
        waits = ["the first look at the models"]
        while waits:
            if self._asking.done():
                self._asking.result()
            now = here()
            waits = waits if now is None else readiness.lacking(self._there, now)
            if waits and time.monotonic() > until:
                raise Unavailable(
                    f"after handover_seconds = {seconds:g} s, {waits[0]} is not ready here yet; {_GOES_ON}"
                )
            if waits:
                await asyncio.wait({self._asking}, timeout=_ASK_SECONDS)

    async def take(self) -> None:
        """Have new connections come here, once they are accepted; the other server goes.

        Raises:
            Unavailable: The running server is gone or stuck, and was not taken over.
        """
        self._enough.set()
        await self._asking
        await self._conversation.say(Take())
        _expected(await self._conversation.hear(), Go)
        self.ports.listeners.resume()
        try:
            await self._conversation.say(Taken())
        except Unavailable as error:  # it has ended in this very moment
            _log.warning("the server that was taken over has ended early: %s", error.message)
        self._leaving = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        """When the other server is gone, its sets are free."""
        await self._conversation.until_closed()
        self._conversation.close()
        used = [one for one in range(self._given.sets) if one not in self._given.free]
        self.ports.listeners.give_back(*used)
        shared = [] if self.ports.listeners.has_many else self.ports.listeners.sets[0]
        for one in (*shared, *self.ports.admin):
            take_again(one)
        _log.info("the server that was taken over has ended")

    async def close(self) -> None:
        """End the conversation. A server that was not taken over by then goes on as it was."""
        for task in (self._asking, self._leaving):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, HeadraceError):
                    await task
        self._conversation.close()


def _expected(message: Message | None, kind: type[_MessageT]) -> _MessageT:
    if isinstance(message, kind):
        return message
    if message is None:
        raise Unavailable(
            "handover: the running server has ended, or gave this one up, before it was taken over"
        )
    raise Unavailable(f"handover: the running server said {type(message).__name__}, not {kind.__name__}")


def _ports(given: Given, sockets: list[socket.socket]) -> Ports:
    if not given.has_many and given.sets > 1:
        raise Unavailable(
            "handover: the workers' sockets can only be handed over where Linux leads connections (BPF), "
            "which it does not here: stop the running server, and start this one"
        )
    sets = [sockets[2 * number : 2 * number + 2] for number in range(given.sets)]
    listeners = Listeners(sets, may_join=given.has_many, free=given.free, leading=given.leading)
    return Ports(listeners, not given.has_many, tuple(sockets[2 * given.sets :]))


def _expect_same_place(sockets: Sequence[socket.socket], config: ServerConfig) -> None:
    for one, setting, port in zip(
        sockets, ("http_port", "grpc_port"), (config.http_port, config.grpc_port), strict=True
    ):
        host, found = one.getsockname()[:2]
        if port not in (0, found):
            raise ConfigError(
                f"{setting}: expected {found}, as of the running server whose place is taken, not {port}; to "
                "serve elsewhere, start without --handover"
            )
        try:
            named = {info[4][0] for info in socket.getaddrinfo(config.host, port, type=socket.SOCK_STREAM)}
        except OSError as error:
            raise ConfigError(f"host: {config.host} is no address: {error.strerror or error}") from error
        if host not in named:
            raise ConfigError(
                f"host: expected {host}, as of the running server whose place is taken, not {config.host}; "
                "to serve elsewhere, start without --handover"
            )
