"""The ports of administration: a port, a path of this machine, or both, served by h2corn."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listeners import Listeners
from headrace.frontends.transport.listening import listen
from headrace.frontends.transport.reloading import ServedCertificate
from headrace.frontends.transport.unix_socket import UnixSocket

_MOST_CONNECTIONS = 16


class AdminPorts:
    """Where administration is asked for.

    Attributes:
        address: Host and port; None without one.
    """

    def __init__(self, config: ServerConfig, given: Sequence[socket.socket] = ()) -> None:
        """Open them.

        Args:
            config: The server's settings.
            given: Those of a server whose place it takes; used where they are what the settings say.

        Raises:
            ConfigError: One cannot be had.
        """
        limits = msgspec.structs.replace(config.limits, max_connections=_MOST_CONNECTIONS)
        self._config = msgspec.structs.replace(config, limits=limits, max_connection_age_seconds=0.0)
        self._at_path: UnixSocket | None = None
        self._at_port: socket.socket | None = None
        self.address: tuple[str, int] | None = None
        try:
            self._use(config, given)
            if config.admin_socket is not None and self._at_path is None:
                self._at_path = UnixSocket(config.admin_socket, "admin_socket")
            if config.admin_port is not None:
                if self._at_port is None:
                    self._at_port = listen(config.host, config.admin_port, "admin_port")
                self.address = self._at_port.getsockname()[:2]
        except BaseException:
            self.close()
            raise

    def _use(self, config: ServerConfig, given: Sequence[socket.socket]) -> None:
        for one in given:
            if one.family == socket.AF_UNIX:
                if config.admin_socket is not None and one.getsockname() == str(config.admin_socket):
                    self._at_path = UnixSocket(config.admin_socket, "admin_socket", one)
                    continue
            elif config.admin_port in (0, one.getsockname()[1]):
                self._at_port = one
                continue
            one.close()

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        opened = (self._at_port, None if self._at_path is None else self._at_path.socket)
        return [one for one in opened if one is not None]

    def transports(
        self, application: Application, certificate: ServedCertificate | None
    ) -> list[H2cornTransport]:
        """What serves them.

        Args:
            application: What answers.
            certificate: What connections to the port are encrypted with; those at the path are not.
        """
        made = []
        if self._at_port is not None:
            made.append(H2cornTransport(application, _alone(self._at_port), self._config, certificate))
        if self._at_path is not None:
            made.append(H2cornTransport(application, _alone(self._at_path.socket), self._config))
        return made

    def close(self, *, leaves_path: bool = False) -> None:
        """Close them.

        Args:
            leaves_path: Whether another server goes on to listen at the path.
        """
        if self._at_port is not None:
            self._at_port.close()
        if self._at_path is not None:
            self._at_path.close(leaves_path=leaves_path)


def _alone(listener: socket.socket) -> Listeners:
    return Listeners([[listener]], may_join=False)
