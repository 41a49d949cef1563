"""A file that lines are appended to, and that may be moved away meanwhile."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.config.telemetry import STDOUT

_MODE = 0o640
_PATIENCE_SECONDS = 0.5
_NEWLINE = ord("\n")


class LineFile:
    """A file, a pipe, or standard output that lines are appended to. Used by one thread.

    Attributes:
        lines: Number of lines written as a whole.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Args:
            path: Path of the file; ``-`` for standard output.

        Raises:
            ConfigError: It cannot be opened.
        """
        self.lines = 0
        self._path = path
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise ConfigError(f"access_log.path: {path} cannot be opened: {error.strerror}") from error
        self._is_torn = False

    def _opened(self) -> int:
        if self._path == STDOUT:
            return os.dup(sys.stdout.fileno())
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_WRONLY
        try:
            if stat.S_ISFIFO(os.stat(self._path).st_mode):
                # Opening a named pipe for writing only would block until somebody reads it.
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        except FileNotFoundError:
            pass
        return os.open(self._path, flags, _MODE)

    def write(self, lines: bytes) -> None:
        """Append lines; wait for a full named pipe briefly, for a full pipe at standard output without limit.

        Args:
            lines: Lines with their line ends.

        Raises:
            OSError: Not all lines were written. If one was written in part, the next write ends it first.
        """
        torn = int(self._is_torn)
        content = b"\n" * torn + lines
        rest = memoryview(content)
        while rest:
            try:
                count = os.write(self._descriptor, rest)
            except BlockingIOError:
                if not self._has_room():
                    raise
                continue
            done = len(content) - len(rest)
            self.lines += content.count(b"\n", done, done + count) - torn
            torn = 0
            self._is_torn = rest[count - 1] != _NEWLINE
            rest = rest[count:]

    def _has_room(self) -> bool:
        """Wait for a short time until a full pipe has room; return whether it has."""
        poll = select.poll()  # select.select takes no descriptors above 1,023
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(_PATIENCE_SECONDS * 1000))

    def follow(self, *, always: bool = False) -> None:
        """Reopen the file if its path now refers to another file, or to none.

        Args:
            always: Whether to reopen it in any case.

        Raises:
            OSError: It cannot be opened; the open file stays in use.
        """
        if self._path == STDOUT or not (always or self._has_moved()):
            return
        before, self._descriptor = self._descriptor, self._opened()
        self._is_torn = False
        os.close(before)

    def _has_moved(self) -> bool:
        ours = os.fstat(self._descriptor)
        try:
            theirs = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
