"""Server processes: started on a core of their own, waited for, counted, and stopped whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.models import CACHE, ROOT

PEERS_PYTHON = ROOT / ".venvs" / "peers" / "bin" / "python"
START_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCHEDULED = 2
"""Of Linux' clocks of a process the one that its scheduler keeps: what clock_getcpuclockid(3) gives."""


def cores() -> tuple[int, int]:
    """The core of the servers and the core of what loads them: the last two that this process may use.

    Raises:
        SystemExit: There is only one, so that the load would be part of what is measured.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("the benchmarks need two cores: one for the server, one for the load")
    return usable[-2], usable[-1]


def on_core(core: int | str, command: Sequence[str]) -> list[str]:
    """The command, pinned to a core, or to some: `0,1`."""
    return ["taskset", "-c", str(core), *command]


def free_port() -> int:
    """A port that nobody listens on now; the peers that cannot say which port they took are given it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@dataclass(frozen=True)
class Command:
    """How to start a server.

    Attributes:
        name: What the tables call it.
        arguments: The command; `{port}` becomes the port.
        environment: What is added to the environment.
        announces: Protocols, and patterns that find their ports in what it prints; none if it is told
            its port.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    announces: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Counters:
    """What a process tree has used since it started.

    Attributes:
        cpu_seconds: User and system time.
        switches: Context switches, wanted and unwanted.
        resident_bytes: Memory it holds now.
    """

    cpu_seconds: float
    switches: int
    resident_bytes: int


class Server:
    """A running server: its ports and its counters."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes], ports: Mapping[str, int]) -> None:
        """Wrap a started process.

        Args:
            command: What started it.
            process: The leader of its session.
            ports: Port by protocol, `grpc` and `http`.
        """
        self.command = command
        self.process = process
        self.ports = ports

    def counters(self) -> Counters:
        """Add up the processes of the server's session; children that ended are in their parent's times."""
        seconds, switches, pages = 0.0, 0, 0
        for pid in session(self.process.pid):
            with contextlib.suppress(
                FileNotFoundError, ProcessLookupError
            ):  # It ended between the two looks.
                fields = _stat(pid)
                seconds += _of_clock(pid) + sum(int(value) for value in fields[13:15]) / TICKS
                pages += int(fields[21])
                switches += _switches(pid)
        return Counters(seconds, switches, pages * PAGE_BYTES)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _of_clock(pid: int) -> float:
    """The processor time of a process and all its threads: in nanoseconds, where /proc counts in 10 ms.

    Raises:
        ProcessLookupError: It has ended.
    """
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError as error:
        raise ProcessLookupError(pid) from error


def session(leader: int) -> list[int]:
    """The processes of a session, by the process that leads it."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if int(_stat(int(entry.name))[3]) == leader:
                    members.append(int(entry.name))
    return members


def _switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
            total += sum(int(value) for value in found)
    return total


@contextlib.contextmanager
def running(command: Command, core: int | str | None = None) -> Iterator[Server]:
    """Start a server, wait until it listens, and stop it with everything it started.

    Args:
        command: What to start.
        core: Where; the servers' core if not given.

    Yields:
        The server.

    Raises:
        RuntimeError: It ended, or did not listen in time; its output is in the message.
    """
    log = CACHE / "logs" / f"{command.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    port = free_port()
    arguments = [argument.replace("{port}", str(port)) for argument in command.arguments]
    pinned = on_core(cores()[0] if core is None else core, arguments)
    with log.open("wb") as output:
        process = subprocess.Popen(
            pinned,
            cwd=ROOT,
            env=os.environ | dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Server(command, process, _wait_until_listening(command, process, log, port))
    finally:
        _stop(process)


def _wait_until_listening(
    command: Command, process: subprocess.Popen[bytes], log: Path, port: int
) -> Mapping[str, int]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        ports = _announced(command, log.read_text(errors="replace"), port)
        if ports and all(_accepts(number) for number in ports.values()):
            return ports
        time.sleep(0.01)
    said = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{command.name} does not listen (exit status {process.poll()}); it said:\n{said}")


def _announced(command: Command, said: str, port: int) -> dict[str, int]:
    if not command.announces:
        return {"grpc": port, "http": port}
    found = {name: re.search(pattern, said) for name, pattern in command.announces}
    return {name: int(match[1]) for name, match in found.items() if match} if all(found.values()) else {}


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask once, then end whatever of the session is left."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def http_post(port: int, path: str, body: bytes, content_type: str) -> bytes:
    """Send one request and return the answer's body.

    Raises:
        RuntimeError: The status is not 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, body, {"content-type": content_type})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"POST {path}: {response.status} {answer[:300]!r}")
    return answer


def require(*programs: str, peers: bool = True) -> None:
    """Stop with a clear message where a program is missing.

    Args:
        programs: What is called.
        peers: Whether the other servers are needed.

    Raises:
        SystemExit: One is.
    """
    packages = {"h2load": "nghttp2-client", "wrk": "wrk", "taskset": "util-linux"}
    missing = [program for program in dict.fromkeys(programs) if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"install {', '.join(packages[program] for program in missing)} (Debian's names)")
    if peers and not PEERS_PYTHON.exists():
        raise SystemExit("the peers' environment is missing: run `make peers`")
