"""Listening at a path of this machine, which only the server's own user may open."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from headrace.errors import ConfigError

_BACKLOG = 64
_MODE = 0o600
_ASK_SECONDS = 1.0


class UnixSocket:
    """A listening socket at a path.

    Attributes:
        path: Where.
        socket: The socket.
    """

    def __init__(self, path: Path, setting: str, given: socket.socket | None = None) -> None:
        """Open it; what a server that was killed has left at the path is removed.

        Args:
            path: Where.
            setting: What the path is called, for the error.
            given: The socket that listens there already.

        Raises:
            ConfigError: It cannot be had: it is too long, something else is there, or somebody listens there.
        """
        self.path = path
        if given is not None:
            self.socket, self._identity = given, _identity(path)
            return
        _make_room(path, setting)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(str(path))
            os.chmod(path, _MODE)  # before anybody can connect
            self.socket.listen(_BACKLOG)
            self._identity = _identity(path)
        except OSError as error:
            self.socket.close()
            way_out = f"; make the directory {path.parent}" if isinstance(error, FileNotFoundError) else ""
            said = f"{setting}: cannot listen at {path}: {error.strerror or error}{way_out}"
            raise ConfigError(said) from error

    def close(self, *, leaves_path: bool = False) -> None:
        """Close it, and remove the path if it is still this socket's.

        Args:
            leaves_path: Whether another server goes on to listen there.
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
        raise ConfigError(f"{setting}: cannot look at {path}: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{setting}: expected a path at which nothing is, but {path} is there: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ASK_SECONDS)
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"{setting}: cannot look at {path}: {error.strerror or error}") from error
    raise ConfigError(
        f"{setting}: somebody listens at {path} already, perhaps a headrace that runs; choose another path"
    )
