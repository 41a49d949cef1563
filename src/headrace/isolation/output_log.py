"""Log the output of a model's process line by line, with limits on the rate and on the length of lines."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

_LONGEST_LINE_BYTES = 4000
_LINES_A_SECOND = 100
_CHUNK_BYTES = 64 * 1024


class Output:
    """One output stream of a process.

    Attributes:
        fd: Read end of the pipe, non-blocking.
    """

    def __init__(
        self, fd: int, level: int, about: dict[str, Any], now: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare to read the pipe, and make it non-blocking.

        Args:
            fd: Read end of the pipe.
            level: Log level of its lines.
            about: The model and the version, for the log.
            now: Monotonic clock in seconds.
        """
        self.fd = fd
        self._level = level
        self._about = about
        self._now = now
        self._rest = b""
        self._second = 0
        self._left = _LINES_A_SECOND
        self._left_out = 0
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Log the output available now; return False at the end of the stream."""
        try:
            chunk = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LONGEST_LINE_BYTES:
            self._tell(self._rest)
            self._rest = b""
        if not chunk:
            self.end()
        return bool(chunk)

    def end(self) -> None:
        """Log an unfinished line, and how many lines were left out; nothing is read afterwards."""
        self._tell(self._rest)
        self._rest = b""
        self._tell_left_out()

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        second = int(self._now())
        if second != self._second:
            self._second, self._left = second, _LINES_A_SECOND
            self._tell_left_out()
        if not self._left:
            self._left_out += 1
            return
        self._left -= 1
        text = line[:_LONGEST_LINE_BYTES].decode(errors="backslashreplace")
        printable = "".join(one if one.isprintable() or one == "\t" else repr(one)[1:-1] for one in text)
        _log.log(self._level, "%s", printable, extra=self._about)

    def _tell_left_out(self) -> None:
        if self._left_out:
            said = "%d lines of the model's output left out"
            _log.log(self._level, said, self._left_out, extra=self._about)
            self._left_out = 0
