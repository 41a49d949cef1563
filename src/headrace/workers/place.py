"""A worker's place: sockets that stay, and the process that is there now."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

from headrace.batching.capacity import LoadReport
from headrace.config import ServerConfig
from headrace.errors import ConfigError, Unavailable
from headrace.frontends.transport.listeners import Listeners
from headrace.frontends.transport.listening import listen_together
from headrace.workers.channel import Channel
from headrace.workers.merging import Standing
from headrace.workers.messages import Message
from headrace.workers.processes import Process


class Place:
    """One worker's place.

    Attributes:
        number: Which.
        set: The number of its sockets in the kernel.
        sockets: For REST and for gRPC; they stay open as long as the server lives.
        channel: To the process; None while there is none.
        process: The process; None while there is none.
        serving: Whether it accepts connections.
        suspect: Whether it does not answer.
        late: Whether it began to accept when the server was about to end.
        missed: How many beats it has not answered, in a row.
        starts: How often a process was started here.
        report: The load that the process has reported last; None while it has not.
    """

    def __init__(self, number: int, sockets: Sequence[socket.socket], among: int | None = None) -> None:
        """Begin without a process.

        Args:
            number: Which place.
            sockets: For REST and for gRPC.
            among: The number of the sockets in the kernel; the place's if left out.
        """
        self.number = number
        self.set = number if among is None else among
        self.sockets = sockets
        self.channel: Channel | None = None
        self.process: Process | None = None
        self.serving = self.suspect = self.late = False
        self.missed = self.starts = 0
        self.report: LoadReport | None = None

    def send(self, message: Message) -> None:
        """Tell the process something, if there is one."""
        if self.channel is not None:
            self.channel.send(message)

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if there is one that has not ended."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the process now, if there is one."""
        self.send_signal(signal.SIGKILL)

    def leave(self) -> None:
        """The process has ended."""
        if self.channel is not None:
            self.channel.close()
        self.channel = self.process = self.report = None
        self.serving = self.suspect = False

    @property
    def answers(self) -> bool:
        """Whether there is a process that serves and is not stuck."""
        return self.serving and not self.suspect

    def standing(self, *, ready: bool) -> Standing | None:
        """How far the process is; None if there is none that counts.

        Args:
            ready: Whether it has told that its models have been tried, and one answers.
        """
        if self.channel is None or self.suspect:
            return None
        return Standing(self.starts == 1, self.serving, ready)


def open_places(config: ServerConfig, workers: int) -> list[Place]:
    """Open the ports, one socket a worker at each.

    Args:
        config: The settings.
        workers: How many workers.

    Raises:
        ConfigError: A port or an address cannot be had.
    """
    http = listen_together(config.host, config.http_port, "http_port", workers)
    try:
        # grpcio listens at sockets of its own, which join these.
        grpc = listen_together(
            *(config.host, config.grpc_port, "grpc_port", workers),
            listening=config.grpc_server != "grpcio",
        )
    except ConfigError:
        for one in http:
            one.close()
        raise
    return [Place(number, pair) for number, pair in enumerate(zip(http, grpc, strict=True))]


def places_at(listeners: Listeners, workers: int) -> list[Place]:
    """Have sets of listening sockets of a running server, one a worker.

    Args:
        listeners: All of them.
        workers: How many workers.

    Raises:
        Unavailable: There are too few, and no further ones can be had.
    """
    try:
        numbers = [listeners.take() for _ in range(workers)]
    except OSError as error:
        raise Unavailable(f"no further socket can be had at the ports: {error.strerror or error}") from error
    return [Place(place, listeners.sets[number], number) for place, number in enumerate(numbers)]
