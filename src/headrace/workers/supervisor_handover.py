"""Hand ports over between a server with workers and another server, with or without workers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

from headrace import __version__
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Ports
from headrace.lifecycle.version_states import VersionStatus
from headrace.server.handover.giving import Side
from headrace.server.handover.startup import Handover
from headrace.workers.supervisor import Supervisor


def handover(begin: Callable[[Ports | None], Supervisor], config: ServerConfig) -> Handover:
    """Return the Handover by which new workers replace a running server.

    Args:
        begin: Starts the workers with the running server's sockets, or with new ones.
        config: The server's settings.
    """
    return Handover(_Candidate(begin), config, __version__)


class _Candidate:
    """Workers that are about to start."""

    def __init__(self, begin: Callable[[Ports | None], Supervisor]) -> None:
        self._begin = begin
        self._pool: Supervisor | None = None

    @property
    def _started(self) -> Supervisor:
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
        """Do nothing: each worker accepts connections as soon as it can."""

    def side(self) -> Side:
        return _Side(self._started)


class _Side:
    """The giving side of a handover: the supervisor's sockets."""

    def __init__(self, pool: Supervisor) -> None:
        self._pool = pool
        self.listeners = pool.listeners
        self.admin: list[socket.socket] = []

    def ready(self) -> Mapping[str, tuple[int, ...]]:
        told = (self._pool.statuses or {}).items()
        found = {model: tuple(one.version for one in many if one.answers) for model, many in told}
        return {model: numbers for model, numbers in found.items() if numbers}

    async def hold(self) -> None:
        """Do nothing: while workers serve, no set of listening sockets is taken or returned."""

    def release(self) -> None:
        """Do nothing; see ``hold``."""

    def leave(self) -> None:
        self._pool.drain(is_followed=True)
