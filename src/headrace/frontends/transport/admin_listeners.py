"""The administration listeners: a port, a Unix socket, or both, served by h2corn."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.certificate_reload import ServedCertificate
from headrace.frontends.transport.generation_sockets import Listeners
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import listen
from headrace.frontends.transport.unix_socket import UnixSocket

_MOST_CONNECTIONS = 16


class AdminPorts:
    """The administration port and Unix socket.

    Attributes:
        address: Host and port; None without a port.
    """

    def __init__(self, config: ServerConfig, given: Sequence[socket.socket] = ()) -> None:
        """Open them.

        Args:
            config: Server settings.
            given: Sockets of a server that is being replaced; those that match the settings are used, the
                others closed.

        Raises:
            ConfigError: One of them cannot be opened.
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
        """Return the transports that serve them.

        Args:
            application: Application to serve.
            certificate: Certificate for TLS on the port; None for plaintext. The Unix socket is plaintext.
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
            leaves_path: Whether another server keeps listening at the path.
        """
        if self._at_port is not None:
            self._at_port.close()
        if self._at_path is not None:
            self._at_path.close(leaves_path=leaves_path)


def _alone(listener: socket.socket) -> Listeners:
    return Listeners([[listener]], may_join=False)
