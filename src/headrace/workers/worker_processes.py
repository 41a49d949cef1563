"""Start the processes of a supervisor: workers, each at its place with sockets, and the keeper of copies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from typing import Protocol

from headrace.base import cpus
from headrace.base.errors import ConfigError, Unavailable
from headrace.batching.capacity import LoadReport
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Listeners, listen_together
from headrace.sealed_memory.keeper import KeeperProcess
from headrace.workers.messages import RELEASE, Channel, Message
from headrace.workers.state_merge import Standing

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
    """Count the open files of a process; return 0 if the kernel does not report it (Linux before 6.2).

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


_LATE_BEATS = 2
"""A process that has not answered this many beats may have connections that it has not accepted."""


class Place:
    """The sockets of one worker, and the process that serves on them now, if any.

    Attributes:
        number: Index of the place, from 0.
        set: Index of these sockets among those that the BPF program steers to.
        sockets: Listening sockets for REST and for gRPC; they stay open while the server runs.
        channel: Channel to the process; None without a process.
        process: The process; None without a process.
        serving: Whether it accepts connections.
        suspect: Whether it has not answered recent beats.
        late: Whether it began to accept after shutdown had begun.
        missed: Number of consecutive unanswered beats.
        starts: Number of processes started here.
        report: The load that the process last reported; None for none.
        other_files: Number of files that the process had open when it began to serve.
    """

    def __init__(self, number: int, sockets: Sequence[socket.socket], among: int | None = None) -> None:
        """Begin without a process.

        Args:
            number: Index of the place.
            sockets: Listening sockets for REST and for gRPC.
            among: Index of the sockets' set; ``number`` by default.
        """
        self.number = number
        self.set = number if among is None else among
        self.sockets = sockets
        self.channel: Channel | None = None
        self.process: Process | None = None
        self.serving = self.suspect = self.late = False
        self.missed = self.starts = self.other_files = 0
        self.report: LoadReport | None = None

    def send(self, message: Message) -> None:
        """Send the process a message, if there is one."""
        if self.channel is not None:
            self.channel.send(message)

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if there is one that has not ended."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, if there is one."""
        self.send_signal(signal.SIGKILL)

    def leave(self) -> None:
        """Reset the place after its process has ended."""
        if self.channel is not None:
            self.channel.close()
        self.channel = self.process = self.report = None
        self.serving = self.suspect = False

    @property
    def answers(self) -> bool:
        """Whether there is a process that serves and answers beats."""
        return self.serving and not self.suspect

    @property
    def open_files(self) -> int:
        """Number of open files of the process; 0 if they cannot be counted."""
        return 0 if self.process is None else open_files(self.process.pid)

    @property
    def connections(self) -> int | None:
        """Number of connections, derived from open files; None if unknown or if two beats are unanswered."""
        files = self.open_files
        return max(0, files - self.other_files) if files and self.missed < _LATE_BEATS else None

    def standing(self, *, ready: bool) -> Standing | None:
        """Return the state of the process; None if there is none or it does not answer beats.

        Args:
            ready: Whether it has reported that its models have been tried and one is ready.
        """
        if self.channel is None or self.suspect:
            return None
        return Standing(self.starts == 1, self.serving, ready)


def open_places(config: ServerConfig, workers: int) -> list[Place]:
    """Open the ports, with one socket per worker at each.

    Args:
        config: The settings.
        workers: Number of workers.

    Raises:
        ConfigError: A port or an address is not available.
    """
    http = listen_together(config.host, config.http_port, "http_port", workers)
    try:
        grpc = listen_together(config.host, config.grpc_port, "grpc_port", workers)
    except ConfigError:
        for one in http:
            one.close()
        raise
    return [Place(number, pair) for number, pair in enumerate(zip(http, grpc, strict=True))]


def places_at(listeners: Listeners, workers: int) -> list[Place]:
    """Take one set of a running server's listening sockets per worker.

    Args:
        listeners: All of its listening sockets.
        workers: Number of workers.

    Raises:
        Unavailable: There is only one set, and the running server accepts on it; or no further socket can be
            opened.
    """
    if not listeners.has_many:
        raise Unavailable(
            "handover: workers cannot take over these sockets: nothing can steer new connections away from "
            "workers whose models still load (a service manager has opened the sockets, or Linux refuses "
            "BPF). Start this server with --workers 1, or stop the running one first"
        )
    try:
        numbers = [listeners.take() for _ in range(workers)]
    except OSError as error:
        raise Unavailable(f"cannot open another socket on the ports: {error.strerror or error}") from error
    return [Place(place, listeners.sets[number], number) for place, number in enumerate(numbers)]
