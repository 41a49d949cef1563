"""Handover between two servers of one process each: taking over from one, and handing over to the next."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from headrace import __version__
from headrace.config import ServerConfig
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import Ports
from headrace.lifecycle.version_states import VersionStatus
from headrace.server.handover.giving import Side
from headrace.server.handover.startup import Handover
from headrace.server.server import Server


def handover(server: Server, config: ServerConfig) -> Handover:
    """Return the Handover that starts a server in place of another one.

    Args:
        server: The server, not started.
        config: Its settings.
    """
    return Handover(_Candidate(server, config), config, __version__)


class _Candidate:
    """A server that is about to start and may take over."""

    def __init__(self, server: Server, config: ServerConfig) -> None:
        self._server = server
        self._seconds = config.handover_seconds

    async def prepare(self, ports: Ports | None) -> None:
        if ports is not None:
            self._server.ports = ports
        await self._server.prepare()
        # A service manager's sockets: connections can wait there.
        if ports is None and self._server.ports is not None:
            await self._server.engine.settle(self._seconds)

    def here(self) -> Mapping[str, Sequence[VersionStatus]] | None:
        return self._server.statuses

    async def serve(self) -> None:
        await self._server.serve()

    def side(self) -> Side:
        return _Side(self._server)


class _Side:
    """The part of a running server that a successor takes over."""

    def __init__(self, server: Server) -> None:
        if server.by_h2corn is None:
            raise ValueError("only h2corn hands ports over")
        self._server = server
        self._transport: H2cornTransport = server.by_h2corn
        self.listeners = self._transport.listeners

    @property
    def admin(self) -> list[socket.socket]:
        return [] if self._server.admin is None else self._server.admin.sockets

    def ready(self) -> Mapping[str, tuple[int, ...]]:
        return {
            model: found
            for model, versions in (self._server.statuses or {}).items()
            if (found := tuple(one.version for one in versions if one.answers))
        }

    async def hold(self) -> None:
        await self._transport.hold()

    def release(self) -> None:
        self._transport.release()

    def leave(self) -> None:
        self._server.drain(is_followed=True)
