"""Start a server, in place of a running one if there is one, and wait for a successor."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.base.errors import ConfigError
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Ports
from headrace.lifecycle.version_states import VersionStatus
from headrace.server.handover.giving import Giving, PathSocket, Side
from headrace.server.handover.taking import Taking

_log = logging.getLogger(__name__)


class Candidate(Protocol):
    """A server that is about to start."""

    async def prepare(self, ports: Ports | None) -> None:
        """Begin to load.

        Args:
            ports: The listening sockets of the running server; None to use its own or inherited ones.
        """

    def here(self) -> Mapping[str, Sequence[VersionStatus]] | None:
        """Return the status of the versions of all models; None until each model has been tried."""

    async def serve(self) -> None:
        """Accept connections. New ones still go to a running server, if the system can steer them."""

    def side(self) -> Side:
        """Return what this server hands over once it serves."""


async def _unless(stopping: asyncio.Future[signal.Signals], task: asyncio.Task[None]) -> bool:
    """Wait for a task; on a stop signal, cancel it. Return whether the task ended first."""
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait((task,))
    return False


class Handover:
    """Starts a server, in place of a running one if there is one, and waits for a successor.

    Attributes:
        taken: Future whose result is the process id of the server that has taken over.
    """

    def __init__(self, candidate: Candidate, config: ServerConfig, release: str) -> None:
        """Store the server and its settings.

        Args:
            candidate: The server, not started.
            config: Its settings.
            release: Its release of headrace.
        """
        self._candidate = candidate
        self._config = config
        self._release = release
        self._taking: Taking | None = None
        self._giving: Giving | None = None
        self.taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def has_taken(self) -> bool:
        """Whether this server, once started, has replaced another one."""
        return self._taking is not None

    async def start(self, stopping: asyncio.Future[signal.Signals]) -> bool:
        """Start the server; return when new connections come to it.

        Args:
            stopping: Future that is resolved when this server must stop; a running server then keeps serving.

        Returns:
            Whether the server serves.

        Raises:
            HeadraceError: The server cannot start, or cannot take over from the running one.
        """
        if self._config.handover is None:
            raise ValueError("expected a path for the handover, got none")
        self._taking = await Taking.begin(self._config, self._release)
        if self._taking is None:
            if not await _unless(stopping, asyncio.ensure_future(self._candidate.prepare(None))):
                return False
            await self._candidate.serve()
            at_path = PathSocket(self._config.handover)
            at_path.move()
            self._wait_at(at_path)
            return True
        return await self._follows(self._taking, self._config.handover, stopping)

    def _wait_at(self, at_path: PathSocket) -> None:
        self._giving = Giving(at_path, self._candidate.side(), self._release)
        self.taken = self._giving.taken

    async def _follows(self, taking: Taking, path: Path, stopping: asyncio.Future[signal.Signals]) -> bool:
        following = asyncio.ensure_future(self._follow(taking, path))
        await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
        if following.done() and following.exception() is None:
            return True
        following.cancel()
        await asyncio.wait((following,))
        await taking.close()
        if not following.cancelled():
            following.result()
        return False

    async def _follow(self, taking: Taking, path: Path) -> None:
        await self._candidate.prepare(taking.ports)
        await taking.until_ready(self._candidate.here, self._config.handover_seconds)
        at_path = PathSocket(path)  # before the running server stops, so that a failure costs nothing
        try:
            await self._candidate.serve()
            await taking.take(self._candidate.here, self._config.handover_seconds)
        except BaseException:
            at_path.close()
            raise
        try:
            at_path.move()
        except ConfigError as error:  # the other server has stopped: keep serving
            _log.error("%s; this server serves, but no other server can take over from it", error.message)
        else:
            self._wait_at(at_path)

    async def close(self) -> None:
        """Stop waiting for a successor, and end any conversation."""
        if self._giving is not None:
            await self._giving.close()
        if self._taking is not None:
            await self._taking.close()
