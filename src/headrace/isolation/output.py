"""Log the output of a model's process line by line, with limits on the rate and on the length of lines."""

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
    """One output stream of a process.

    Attributes:
        fd: Read end of the pipe, non-blocking.
    """

    def __init__(self, fd: int, level: int, about: dict[str, Any]) -> None:
        """Prepare to read the pipe, and make it non-blocking.

        Args:
            fd: Read end of the pipe.
            level: Log level of its lines.
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
