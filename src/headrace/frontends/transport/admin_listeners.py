"""The administration listeners: a port, a Unix socket, or both, served by h2corn."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigError
from headrace.config import ServerConfig
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.certificates import ServedCertificate
from headrace.frontends.transport.h2corn import H2cornTransport
from headrace.frontends.transport.listening_sockets import Listeners, listen

# A listening Unix socket that only the server's own user may open.


_BACKLOG = 64
_MODE = 0o600
_ASK_SECONDS = 1.0


class UnixSocket:
    """A listening Unix socket at a path.

    Attributes:
        path: Path of the socket.
        socket: The socket.
    """

    def __init__(self, path: Path, setting: str, given: socket.socket | None = None) -> None:
        """Open the socket; one left at the path by a server that was killed is removed.

        Args:
            path: Path of the socket.
            setting: Name of the path's setting, for the error.
            given: Socket that already listens there; None to open one.

        Raises:
            ConfigError: The path is too long, holds something else, or another process listens there.
        """
        self.path = path
        if given is not None:
            self.socket, self._identity = given, _identity(path)
            return
        _make_room(path, setting)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(str(path))
            os.chmod(path, _MODE)  # before clients can connect
            self.socket.listen(_BACKLOG)
            self._identity = _identity(path)
        except OSError as error:
            self.socket.close()
            way_out = f"; make the directory {path.parent}" if isinstance(error, FileNotFoundError) else ""
            said = f"{setting}: cannot listen at {path}: {error.strerror or error}{way_out}"
            raise ConfigError(said) from error

    def close(self, *, leaves_path: bool = False) -> None:
        """Close the socket, and remove the path if it is still this socket's.

        Args:
            leaves_path: Whether another server keeps listening there.
        """
        self.socket.close()
        if leaves_path:
            return
        with suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _make_room(path: Path, setting: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{setting}: cannot check {path}: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{setting}: expected an unused path, but {path} exists and is not a socket: remove it"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ASK_SECONDS)
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"{setting}: cannot check {path}: {error.strerror or error}") from error
    raise ConfigError(f"{setting}: {path} is taken, perhaps by another headrace server; choose another path")


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
