"""A file that lines are appended to, whole or not at all, and that may be moved away meanwhile."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

from headrace.config.observing import STDOUT
from headrace.errors import ConfigError

_MODE = 0o640
_PATIENCE_SECONDS = 0.5
_NEWLINE = ord("\n")


class LineFile:
    """Where lines go: a file, a pipe, or standard output. One thread uses it."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Args:
            path: The file; ``-`` for standard output.

        Raises:
            ConfigError: It cannot be opened.
        """
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
                # To open a named pipe for writing only would wait for somebody who reads it.
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        except FileNotFoundError:
            pass
        return os.open(self._path, flags, _MODE)

    def write(self, lines: bytes) -> None:
        """Append lines; waits where a pipe is full.

        Args:
            lines: Each with its end.

        Raises:
            OSError: Not all of them are there. If one is there in part, the next write ends it first.
        """
        rest = memoryview(b"\n" + lines if self._is_torn else lines)
        while rest:
            try:
                count = os.write(self._descriptor, rest)
            except BlockingIOError:
                if not select.select([], [self._descriptor], [], _PATIENCE_SECONDS)[1]:
                    raise
                continue
            self._is_torn = rest[count - 1] != _NEWLINE
            rest = rest[count:]

    def follow(self, *, always: bool = False) -> None:
        """Open the file anew if what has its name is another one, or nothing.

        Args:
            always: Open it anew in any case.

        Raises:
            OSError: It cannot be opened; lines go where they went.
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
        """Close it."""
        os.close(self._descriptor)
