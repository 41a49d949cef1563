"""A listening Unix socket that only the server's own user may open."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from headrace.base.errors import ConfigError

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
