"""A server takes the place of another one, step by step, and then gives its own place away."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.config import ServerConfig
from headrace.errors import ConfigError
from headrace.frontends.transport.listeners import Ports
from headrace.handover.giving import Giving, PathSocket, Side
from headrace.handover.taking import Taking
from headrace.lifecycle.state import VersionStatus

_log = logging.getLogger(__name__)


class Candidate(Protocol):
    """A server that is about to start."""

    async def prepare(self, ports: Ports | None) -> None:
        """Begin to load.

        Args:
            ports: The listening sockets of the running server; None to open some.
        """

    def here(self) -> Mapping[str, Sequence[VersionStatus]] | None:
        """What can be told about the versions of all models; None as long as they have not been tried."""

    async def serve(self) -> None:
        """Accept connections, which are not led here yet if another server runs."""

    def side(self) -> Side:
        """What it gives away, once it serves."""


async def _unless(stopping: asyncio.Future[signal.Signals], task: asyncio.Task[None]) -> bool:
    """Wait for a task, or until the process is to stop; returns whether the task has ended first."""
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait((task,))
    return False


class Handover:
    """Starts a server, in the place of another one if there is one, and waits for one that follows.

    Attributes:
        taken: Has a result once another server has taken the place of this one.
    """

    def __init__(self, candidate: Candidate, config: ServerConfig, release: str) -> None:
        """Prepare.

        Args:
            candidate: Not started.
            config: Its settings.
            release: Which headrace it is.
        """
        self._candidate = candidate
        self._config = config
        self._release = release
        self._taking: Taking | None = None
        self._giving: Giving | None = None
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_taken(self) -> bool:
        """Whether this server, once started, has the place of another one."""
        return self._taking is not None

    async def start(self, stopping: asyncio.Future[signal.Signals]) -> bool:
        """Start the server; returns when new connections come to it.

        Args:
            stopping: Has a result when it is to stop: then a running server goes on as it was.

        Returns:
            Whether it serves.

        Raises:
            HeadraceError: It cannot start, or not take the running one's place.
        """
        if self._config.handover is None:
            raise ValueError("there is no path to hand over at")
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
        at_path = PathSocket(path)  # before the other server goes: whoever fails now costs nothing
        try:
            await self._candidate.serve()
            await taking.take()
        except BaseException:
            at_path.close()
            raise
        try:
            at_path.move()
        except ConfigError as error:  # nobody else serves now
            _log.error("%s; this server serves, and no other one can take its place", error.message)
        else:
            self._wait_at(at_path)

    async def close(self) -> None:
        """Wait for no server that follows, any more, and talk to none."""
        if self._giving is not None:
            await self._giving.close()
        if self._taking is not None:
            await self._taking.close()
