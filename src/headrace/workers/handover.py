"""Workers that take the place of a running server, of one process or several, and give theirs away."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

from headrace import __version__
from headrace.config import ServerConfig
from headrace.frontends.transport.listeners import Ports
from headrace.handover.giving import Side
from headrace.handover.place import Handover
from headrace.lifecycle.state import VersionStatus
from headrace.workers.pool import Pool


def handover(begin: Callable[[Ports | None], Pool], config: ServerConfig) -> Handover:
    """What starts workers in the place of a running server.

    Args:
        begin: Starts them at its sockets, or at new ones.
        config: The server's settings.
    """
    return Handover(_Candidate(begin), config, __version__)


class _Candidate:
    """Workers that are about to start."""

    def __init__(self, begin: Callable[[Ports | None], Pool]) -> None:
        self._begin = begin
        self._pool: Pool | None = None

    @property
    def _started(self) -> Pool:
        if self._pool is None:
            raise ValueError("no worker has been started")
        return self._pool

    async def prepare(self, ports: Ports | None) -> None:
        for one in () if ports is None else ports.admin:
            one.close()
        self._pool = self._begin(ports)

    def here(self) -> Mapping[str, Sequence[VersionStatus]] | None:
        pool = self._started
        if pool.failed.done():
            raise pool.failed.result()
        return pool.statuses

    async def serve(self) -> None:
        """Each worker accepts as soon as it can."""

    def side(self) -> Side:
        return _Side(self._started)


class _Side:
    """What workers give away: the sockets, which the supervisor has."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.listeners = pool.listeners
        self.admin: list[socket.socket] = []

    def ready(self) -> Mapping[str, tuple[int, ...]]:
        told = (self._pool.statuses or {}).items()
        found = {model: tuple(one.version for one in many if one.answers) for model, many in told}
        return {model: numbers for model, numbers in found.items() if numbers}

    async def hold(self) -> None:
        """No set is taken or given back while workers serve."""

    def release(self) -> None:
        """See ``hold``."""

    def leave(self) -> None:
        self._pool.drain(is_followed=True)
