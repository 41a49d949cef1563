"""What a model's process prints goes to the server's log, line by line, and never more than it can bear."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

_log = logging.getLogger(__name__)

_LONGEST_LINE_BYTES = 4000
_LINES_A_SECOND = 100
_CHUNK_BYTES = 64 * 1024


class Output:
    """One stream of one process.

    Attributes:
        fd: The end of the pipe that is read here; it does not block.
    """

    def __init__(self, fd: int, level: int, about: dict[str, Any]) -> None:
        """Read nothing yet.

        Args:
            fd: The descriptor.
            level: What its lines are logged as.
            about: The model and the version, for the log.
        """
        self.fd = fd
        self._level = level
        self._about = about
        self._rest = b""
        self._second = 0
        self._left = _LINES_A_SECOND
        self._left_out = 0
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Log what has come; False when nothing more can come."""
        try:
            chunk = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LONGEST_LINE_BYTES or not chunk:
            self._tell(self._rest)
            self._rest = b""
        return bool(chunk)

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, _LINES_A_SECOND
            if self._left_out:
                _log.log(
                    self._level, "%d lines of the model's output left out", self._left_out, extra=self._about
                )
                self._left_out = 0
        if not self._left:
            self._left_out += 1
            return
        self._left -= 1
        text = line[:_LONGEST_LINE_BYTES].decode(errors="backslashreplace")
        printable = "".join(one if one.isprintable() or one == "\t" else repr(one)[1:-1] for one in text)
        _log.log(self._level, "%s", printable, extra=self._about)
