"""The new server's side of a handover: receive the listening sockets, and take over when all is ready."""

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

from headrace.base.errors import ConfigError, FailedPrecondition, HeadraceError, Unavailable
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Listeners, Ports, close_waiting, take_again
from headrace.lifecycle.version_states import VersionStatus
from headrace.server.handover import readiness
from headrace.server.handover.conversation import Conversation
from headrace.server.handover.giving import expect_own_directory
from headrace.server.handover.messages import (
    PROTOCOLS,
    Ask,
    Given,
    Go,
    HandoverRefused,
    Hello,
    Message,
    Ready,
    Take,
    Taken,
)

_log = logging.getLogger(__name__)

_MessageT = TypeVar("_MessageT", bound=Message)
_ASK_SECONDS = 0.2
_KEEPS_SERVING = "the running server keeps serving"

Here = Callable[[], Mapping[str, Sequence[VersionStatus]] | None]
"""Returns the status of the versions of this server; None until each model has been tried."""


async def running_at(path: Path) -> Conversation | None:
    """Connect to the server that listens at a path.

    Returns:
        A conversation with the server; None if none listens there.

    Raises:
        ConfigError: The path is not a socket, others can write to its directory, or the directory or the
            server belongs to another user.
        Unavailable: The server does not accept the connection.
    """
    expect_own_directory(path)
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            expected = "expected an unused path, or the socket of a running server"
            raise ConfigError(f"handover: {expected}, but {path} is something else: remove it")
    except FileNotFoundError:
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):  # the socket file of a killed server
        end.close()
        return None
    except OSError as error:
        end.close()
        raise Unavailable(
            f"handover: the server at {path} does not accept the connection: {error}"
        ) from error
    conversation = Conversation(end)
    if conversation.user != os.geteuid():
        conversation.close()
        raise ConfigError(f"handover: expected a server of the same user at {path}")
    return conversation


class Taking:
    """Takes over from a running server, step by step. Until the last step that server keeps serving.

    Attributes:
        ports: The listening sockets.
    """

    def __init__(self, path: Path, conversation: Conversation, given: Given, ports: Ports) -> None:
        """See ``begin``."""
        self._path = path
        self._conversation = conversation
        self._given = given
        self.ports = ports
        self._there: Mapping[str, Sequence[int]] | None = None  # None until the running server reports it
        self._enough = asyncio.Event()
        self._asking = asyncio.create_task(self._ask())
        self._leaving: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, config: ServerConfig, release: str) -> Taking | None:
        """Receive the listening sockets of the running server; return None if there is none.

        Args:
            config: The settings of the new server.
            release: The release of the new server.

        Raises:
            ConfigError: The running server listens on another host or port than these settings name.
            Unavailable: The running server does not answer.
            FailedPrecondition: The running server refuses.
        """
        if config.handover is None:
            return None
        conversation = await running_at(config.handover)
        if conversation is None:
            return None
        try:
            await conversation.say(Hello(release, PROTOCOLS))
            given = await conversation.hear()
            if isinstance(given, HandoverRefused):
                raise FailedPrecondition(f"handover: the running server refuses: {given.why}")
            if not isinstance(given, Given) or given.protocol not in PROTOCOLS or given.sets < 1:
                raise Unavailable("handover: the process at the path does not answer like a headrace server")
            descriptors = await conversation.take(2 * given.sets + given.admin)
            ports = _ports(given, [socket.socket(fileno=one) for one in descriptors])
            _expect_same_place(ports.listeners.sets[0], config)
        except BaseException:
            conversation.close()
            raise
        _log.info("taking over from a running server", extra={"release": given.headrace})
        return cls(config.handover, conversation, given, ports)

    async def _ask(self) -> None:
        """Ask the running server repeatedly which versions are ready; fail when it fails."""
        while not self._enough.is_set():
            await self._conversation.say(Ask())
            answer = _expected(await self._conversation.hear(), Ready)
            self._there = answer.models
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_SECONDS):
                    await self._enough.wait()

    async def until_ready(self, here: Here, seconds: float) -> None:
        """Wait until everything that is ready in the running server is ready here.

        Args:
            here: Returns the status of the versions here; None until each model has been tried.
            seconds: Timeout.

        Raises:
            FailedPrecondition: A version failed to load here.
            Unavailable: The timeout expired, or the running server has ended or hangs.
        """
        until = time.monotonic() + seconds
        while (waits := self._waits(here)) is not None:
            if self._asking.done():
                self._asking.result()
            if time.monotonic() > until:
                raise Unavailable(f"after handover_seconds = {seconds:g} s, {waits}; {_KEEPS_SERVING}")
            await asyncio.wait({self._asking}, timeout=_ASK_SECONDS)

    def _waits(self, here: Here) -> str | None:
        """Return what the handover waits for; None if this server may take over."""
        now = here()
        if now is None:
            return "the first scan of the models is not ready here yet"
        if self._there is None:
            return "the running server has not reported its ready versions"
        lacking = readiness.lacking(self._there, now)
        return f"{lacking[0]} is not ready here yet" if lacking else None

    async def take(self, here: Here, seconds: float) -> None:
        """Steer new connections to this server, which must accept them by now; the other one shuts down.

        Args:
            here: As in ``until_ready``; called again, because the running server may report more versions.
            seconds: Timeout for these versions, in seconds.

        Raises:
            FailedPrecondition: A version failed to load here.
            Unavailable: The running server ended or hung before the takeover, or aborted it.
        """
        await self._until_told_last(here, seconds)
        await self._conversation.say(Take())
        _expected(await self._conversation.hear(), Go)
        self.ports.listeners.resume()
        try:
            await self._conversation.say(Taken())
        except Unavailable as error:
            if await self._serves_on():
                self.ports.listeners.lead_to(self._given.leading)
                self.ports.listeners.pause()
                raise Unavailable(
                    f"handover: the running server aborted the handover; {_KEEPS_SERVING}"
                ) from error
            _log.warning("the server that was taken over has ended early: %s", error.message)
        self._leaving = asyncio.create_task(self._until_gone())

    async def _until_told_last(self, here: Here, seconds: float) -> None:
        """Stop asking, and wait until all versions of the last answer are ready here."""
        self._enough.set()
        await self._asking
        while self._waits(here) is not None:
            self._enough.clear()
            self._asking = asyncio.create_task(self._ask())
            await self.until_ready(here, seconds)
            self._enough.set()
            await self._asking

    async def _serves_on(self) -> bool:
        """Return whether the running server, which closed the conversation too early, listens at the path.

        If so, it aborted the handover, perhaps because this process was suspended, and keeps serving.
        """
        try:
            running = await running_at(self._path)
        except ConfigError:  # what is at the path now is no server
            return False
        except Unavailable:
            return True
        if running is not None:
            running.close()
        return running is not None

    async def _until_gone(self) -> None:
        """Wait for the other server to end, then reclaim its sets."""
        await self._conversation.until_closed()
        self._conversation.close()
        listeners = self.ports.listeners
        used = [one for one in range(self._given.sets) if one not in self._given.free]
        if listeners.has_many:  # a dead worker's backlog holds connections that nobody will accept
            closed = close_waiting([one for number in used for one in listeners.sets[number]])
            if closed:
                _log.warning("closed connections of a worker that had died", extra={"connections": closed})
        listeners.give_back(*used)
        shared = [] if listeners.has_many else listeners.sets[0]
        for one in (*shared, *self.ports.admin):
            take_again(one)
        _log.info("the server that was taken over has ended")

    async def close(self) -> None:
        """End the conversation. A server that was not taken over keeps serving."""
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
        raise Unavailable("handover: the running server ended or gave up before this one could take over")
    raise Unavailable(
        f"handover: expected {kind.__name__} from the running server, got {type(message).__name__}"
    )


def _ports(given: Given, sockets: list[socket.socket]) -> Ports:
    if not given.has_many and given.sets > 1:
        raise Unavailable(
            "handover: the sockets of several workers can only be handed over where Linux can steer new "
            "connections (BPF), but it cannot here: stop the running server, and start this one"
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
                f"{setting}: expected {found}, the port of the running server, got {port}; to serve "
                "elsewhere, start without --handover"
            )
        try:
            named = {info[4][0] for info in socket.getaddrinfo(config.host, port, type=socket.SOCK_STREAM)}
        except OSError as error:
            raise ConfigError(f"host: {config.host} is not an address: {error.strerror or error}") from error
        if host not in named:
            raise ConfigError(
                f"host: expected {host}, the address of the running server, got {config.host}; to "
                "serve elsewhere, start without --handover"
            )
