"""Start the processes of a supervisor: workers, and the keeper of their sealed copies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from headrace.base import cpus
from headrace.config import ServerConfig
from headrace.sealed_memory.keeper_process import KeeperProcess
from headrace.workers.messages import RELEASE

_log = logging.getLogger(__name__)


class Process(Protocol):
    """A worker's process; ``asyncio.subprocess.Process`` is one."""

    @property
    def pid(self) -> int:
        """The process identifier."""

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
    """Starts processes; tests of the supervisor replace it."""

    def __init__(self, command: Sequence[str], workers: int) -> None:
        """Prepare to start processes.

        Args:
            command: Command line of a worker, to which a descriptor's number and the release are appended.
            workers: Number of workers, which share the processors.
        """
        self._command = command
        self._environment = cpus.environment(cpus.share(cpus.available(), workers))

    async def worker(self, end: int, descriptors: Sequence[int]) -> Process:
        """Start a worker.

        Args:
            end: Descriptor of its end of the channel.
            descriptors: Further descriptors to pass on, its listening sockets first.

        Raises:
            OSError: The process cannot be started.
        """
        return await asyncio.create_subprocess_exec(
            *self._command,
            str(end),
            RELEASE,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(end, *descriptors),
            env=self._environment,
        )

    def keeper(self, config: ServerConfig) -> KeeperProcess | None:
        """Start the keeper; return None if that fails, so that each worker makes its own sealed copies.

        Args:
            config: The server's settings.
        """
        try:
            return KeeperProcess(config.log_format, config.log_level)
        except OSError as error:
            _log.warning("models' memory is not shared: the keeper cannot be started: %s", error)
            return None


def open_files(pid: int) -> int:
    """Count the open files of a process; return 0 where the kernel does not tell (Linux before 6.2).

    Args:
        pid: Its process identifier.
    """
    try:
        return os.stat(f"/proc/{pid}/fd").st_size
    except OSError:
        return 0


def how_ended(code: int) -> str:
    """Return a phrase for how a process has ended.

    Args:
        code: Its exit code, negative for a signal.
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
