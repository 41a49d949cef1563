"""What all servers have in common: a folder, ports, a process, and when it is ready."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from tools.services.certificates import Certificates, certificates
from tools.services.errors import ServiceError
from tools.services.ports import HOST, holder, is_free
from tools.services.processes import Process

READY_SECONDS = 120.0
STOP_SECONDS = 60.0
LAST_LINES = 25
LOG_BYTES = 16 << 20


class Service(ABC):
    """A server of one kind on this machine, with its data in a folder.

    Every operation ends with the server in the state that it names. What a client needs is in the attributes.

    Attributes:
        kind: What it is, ``redis`` for example.
        well_known_ports: The ports on which people expect it; the first is the clients'.
        folder: Where its settings, data and log lie.
        ports: Its ports; the first is the clients'.
        user: Who a client says it is, where there is a password.
        password: The password, or None if anybody may come in.
        tls: The certificates' files, or None if connections are plain.
        tied: Whether the server is killed when this program ends, however it ends.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    well_known_ports: ClassVar[tuple[int, ...]]
    user: ClassVar[str] = "default"

    def __init__(
        self,
        folder: Path,
        ports: tuple[int, ...],
        *,
        tls: bool = False,
        password: bool = False,
        tied: bool = True,
    ) -> None:
        """Describe a server; nothing is started yet."""
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.ports = ports
        self.tied = tied
        self.password = self._secret("password") if password else None
        self.tls: Certificates | None = (
            certificates(self.folder / "tls", self._secret("store-password")) if tls else None
        )
        self._process: Process | None = None

    # ---- what differs --------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Fetch what is missing on this machine; at once when all is there.

        Raises:
            ServiceError: Something cannot be fetched.
        """

    @abstractmethod
    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Write the settings, and give the command and what its environment has more than this one.

        Raises:
            ServiceError: The server's own tools failed.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Ask it in its own protocol whether it is ready for clients' work.

        Raises:
            OSError: There is no connection, or it ended.
        """

    @abstractmethod
    def how_to_connect(self) -> str:
        """Give a line for people: what to type, or what to pass to a client."""

    # ---- what clients need ---------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address it listens on."""
        return HOST

    @property
    def port(self) -> int:
        """The clients' port."""
        return self.ports[0]

    @property
    def address(self) -> str:
        """Host and port of the clients."""
        return f"{HOST}:{self.port}"

    @property
    def ca_file(self) -> str | None:
        """The file of the authority that a client trusts, or None if connections are plain."""
        return str(self.tls.ca) if self.tls else None

    @property
    def log(self) -> Path:
        """The file that it writes its log to."""
        return self.folder / "log"

    @property
    def pid(self) -> int | None:
        """Its process, or None if it does not run."""
        return self._process.pid if self._process is not None and self._process.alive() else None

    @property
    def running(self) -> bool:
        """Whether its process lives; a frozen one does."""
        return self.pid is not None

    def connect(self, seconds: float = 2.0) -> socket.socket:
        """Open a connection for the probe, with TLS where the server has it."""
        plain = socket.create_connection((HOST, self.port), seconds)
        if self.tls is None:
            return plain
        try:
            context = ssl.create_default_context(cafile=str(self.tls.ca))
            return context.wrap_socket(plain, server_hostname=HOST)
        except BaseException:
            plain.close()
            raise

    # ---- what tests and people do --------------------------------------------------------------

    def launch(self) -> None:
        """Start the process without waiting until it is ready.

        Raises:
            ServiceError: It runs already, a port is taken, or something is missing on this machine.
        """
        if self.running:
            raise ServiceError(f"{self.title} runs already, as process {self.pid}")
        self.prepare()
        for port in self.ports:
            if not is_free(port):
                raise ServiceError(f"port {port} for {self.title} is taken{holder(port)}: end that first")
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_name("log.before"))
        command, environment = self.command()
        self._process = Process.spawn(
            command, folder=self.folder, log=self.log, environment=environment, tied=self.tied
        )

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it answers in its own protocol.

        Raises:
            ServiceError: It ended, or is not ready in time; with the last lines of its log.
        """
        until = time.monotonic() + seconds
        last = "it has not answered"
        while True:
            try:
                if self.answers():
                    return
            except OSError as error:
                last = str(error)
            if not self.running:
                raise ServiceError(f"{self.title} ended while it started. {self.last_lines()}")
            if time.monotonic() > until:
                raise ServiceError(
                    f"{self.title} is not ready after {seconds:g} s: {last}. {self.last_lines()}"
                )
            time.sleep(0.05)

    def start(self) -> Self:
        """Start it, and wait until it is ready; if that fails, nothing is left running."""
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end (SIGTERM), and wait for that; a frozen one is thawed for it.

        Raises:
            ServiceError: It has not ended in time; it runs on.
        """
        if self._process is None:
            return
        self._process.signal(signal.SIGTERM)
        self._process.signal(signal.SIGCONT)
        if not self._process.wait(seconds):
            raise ServiceError(
                f"{self.title} (process {self.pid}) has not ended {seconds:g} s after SIGTERM; "
                f"kill -KILL {self.pid} ends it. {self.last_lines()}"
            )

    def kill(self) -> None:
        """End it as a crash would (SIGKILL), frozen or not.

        Raises:
            ServiceError: The kernel has not ended it within a minute.
        """
        if self._process is None:
            return
        self._process.signal(signal.SIGKILL)
        if not self._process.wait(STOP_SECONDS):
            raise ServiceError(f"{self.title} (process {self.pid}) has not ended after SIGKILL")

    def freeze(self) -> None:
        """Stop it from doing anything (SIGSTOP): connections stay open, and nothing is answered.

        Raises:
            ServiceError: It does not run.
        """
        self._signal_running(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while self._process is not None and self._process.alive() and not self._process.stopped():
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.title} goes on although it was stopped")
            time.sleep(0.01)

    def thaw(self) -> None:
        """Let a frozen one go on.

        Raises:
            ServiceError: It does not run.
        """
        self._signal_running(signal.SIGCONT)

    def restart(self) -> Self:
        """Stop it if it runs, and start it on the same ports with the same data."""
        self.stop()
        return self.start()

    def last_lines(self, count: int = LAST_LINES) -> str:
        """Give the end of its log, for an error or a person."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()[-count:]
        except FileNotFoundError:
            return f"It has not written a log ({self.log})."
        return "\n".join([f"The end of its log ({self.log}):", *lines])

    # ---- what a later command needs ------------------------------------------------------------

    def remember(self) -> None:
        """Write down which process this is, for a command that comes later."""
        state = {"ports": self.ports, "tls": self.tls is not None, "password": self.password is not None}
        if self._process is not None:
            state |= {"pid": self._process.pid, "born": self._process.born}
        partial = self.folder / "state.partial"
        partial.write_text(json.dumps(state), "utf-8")
        partial.replace(self.folder / "state.json")

    @classmethod
    def recall(cls, folder: Path) -> Self | None:
        """Give the server that was started in a folder, running or not; None if there never was one.

        Raises:
            ServiceError: What was written down cannot be read.
        """
        path = folder / "state.json"
        try:
            state = json.loads(path.read_text("utf-8"))
            service = cls(
                folder, tuple(state["ports"]), tls=state["tls"], password=state["password"], tied=False
            )
            if "pid" in state:
                service._process = Process(int(state["pid"]), int(state["born"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ServiceError(
                f"{path} cannot be read ({error}): remove it after ending what it names"
            ) from error
        return service

    def _signal_running(self, number: signal.Signals) -> None:
        """Send a signal to what must be running."""
        if self._process is None or not self._process.alive():
            raise ServiceError(f"{self.title} does not run")
        self._process.signal(number)

    def _secret(self, name: str) -> str:
        """Give a secret of this folder; it is made when first asked for, and only this user can read it."""
        path = self.folder / name
        try:
            return path.read_text("ascii").strip()
        except FileNotFoundError:
            path.touch(0o600)
            path.write_text(secrets.token_urlsafe(18) + "\n", "ascii")
            return path.read_text("ascii").strip()


def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly so many bytes.

    Raises:
        ConnectionError: The other side closed before.
    """
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the connection was closed")
        parts += part
    return bytes(parts)
