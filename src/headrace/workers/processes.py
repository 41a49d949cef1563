"""The processes that a supervisor starts: workers, and the keeper of their shared memory."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Protocol

from headrace.config import ServerConfig
from headrace.sealed.process import KeeperProcess
from headrace.workers.messages import RELEASE

_log = logging.getLogger(__name__)


class Process(Protocol):
    """A worker's process; ``asyncio.subprocess.Process`` is one."""

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: The process has ended.
        """

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""


class Processes:
    """Starts processes. A test of the supervisor's loops starts others in their place."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start none yet.

        Args:
            command: What starts a worker; the number of a descriptor and the release of messages follow.
        """
        self._command = command

    async def worker(self, end: int, descriptors: Sequence[int]) -> Process:
        """Start a worker.

        Args:
            end: The descriptor of its end of the channel.
            descriptors: The others that it gets: its listening sockets first.

        Raises:
            OSError: No process can be started.
        """
        return await asyncio.create_subprocess_exec(
            *self._command,
            str(end),
            RELEASE,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(end, *descriptors),
        )

    def keeper(self, config: ServerConfig) -> KeeperProcess | None:
        """Start what makes the workers' sealed copies; None if that fails: each makes its own then.

        Args:
            config: The server's settings.
        """
        try:
            return KeeperProcess(config.log_format, config.log_level)
        except OSError as error:
            _log.warning("models' memory is not shared: the keeper cannot be started: %s", error)
            return None


def how_ended(code: int) -> str:
    """Say how a process has ended.

    Args:
        code: Its exit code, negative for a signal.
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
