"""Start a keeper in its own process, and restart it when it has ended."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
_END_SECONDS = 5.0


class KeeperProcess:
    """A keeper's process, with both ends of its socket, so that pending questions survive a restart.

    The keeper ends when all asking ends are closed, and thus with its last asker, even if that one crashes.

    Attributes:
        descriptor: The asking end, for ``use_keeper`` in each process that it is passed to.
    """

    def __init__(self, log_format: str = "text", log_level: str = "info") -> None:
        """Start the process.

        Args:
            log_format: Format of its log, on this process's standard error: text or json.
            log_level: Minimum level of its log.

        Raises:
            OSError: The process cannot be started.
        """
        self._keeping, self._asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._asking.fileno()
        self._command = [
            *(sys.executable, "-m", "headrace.sealed_memory.keeper", str(self._keeping.fileno())),
            *(log_format, log_level),
        ]
        self._started = time.monotonic()
        try:
            self._process = self._start()
        except OSError:
            self._keeping.close()
            self._asking.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the keeper."""
        return self._process.pid

    def look_after(self) -> None:
        """Restart the keeper if it has ended; never blocks. To be called about once a second."""
        ended = self._process.poll()
        if ended is None or time.monotonic() - self._started < _AGAIN_SECONDS:
            return
        _log.warning("the keeper of shared memory has ended (%d) and is started again", ended)
        self._started = time.monotonic()
        try:
            self._process = self._start()
        except OSError as error:
            _log.warning("the keeper of shared memory cannot be started: %s", error.strerror)

    def close(self) -> None:
        """Kill the keeper, even if others still ask it. Copies remain with the processes that hold them."""
        self._keeping.close()
        self._asking.close()
        self._process.kill()
        self._process.wait(_END_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        keeping = self._keeping.fileno()
        return subprocess.Popen(self._command, pass_fds=[keeping], stdin=subprocess.DEVNULL)
