"""The processes of a server with several workers, as the system tells of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.running_server import RunningServer

_WORKER = b"headrace.cli.worker"
_ESTABLISHED = "01"


def workers_of(server: RunningServer) -> list[int]:
    """The workers that are there now, the oldest first."""
    return children_of(server, _WORKER)


def children_of(server: RunningServer, module: bytes) -> list[int]:
    """The supervisor's processes that run a module and have not ended, the oldest first."""
    return sorted(
        (number for number in _children(server.process.pid) if _runs(number, module)), key=_started_ticks
    )


def is_worker(number: int) -> bool:
    """Whether a process is there, and is a worker that has not ended."""
    return _runs(number, _WORKER)


def _runs(number: int, module: bytes) -> bool:
    try:
        return module in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def _started_ticks(number: int) -> int:
    """When a process was started, since the machine's start; process numbers begin again at the smallest."""
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # it has just ended
        return 0


def connections_of(process: int, server: RunningServer, port: int = 0) -> int:
    """How many connections to a server's port a process of it has; to that of REST if none is named."""
    return len(callers_of(process, port or server.http_port))


def callers_of(process: int, port: int) -> set[str]:
    """The other ends of the connections that a process has at a port, as the system tells them."""
    held = set[str]()
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(file))
    found = set[str]()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if local.endswith(f":{port:04X}") and state == _ESTABLISHED and f"socket:[{inode}]" in held:
            found.add(remote)
    return found


def everywhere(server: RunningServer, path: str) -> set[int]:
    """The statuses of many new connections, so that each worker gets some."""
    return {server.get(path)[0] for _ in range(24)}


def workers_ready(server: RunningServer) -> int:
    """How many workers get new connections, as the server's metrics tell."""
    return int(scrape(server)["headrace_workers_ready"])


def scrape(server: RunningServer) -> dict[str, float]:
    """All metrics, by name and labels."""
    status, text = server.get("/metrics")
    assert status == 200, text
    lines = [line for line in text.decode().splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def process_tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    return [root, *(one for child in sorted(_children(root)) for one in process_tree(child))]


def _children(process: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def pss_bytes(processes: Iterable[int]) -> int:
    """What processes take, each page divided by those who have it."""
    told = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in processes]
    return sum(int(re.findall(r"^Pss: +([0-9]+) kB", one, re.MULTILINE)[0]) * 1024 for one in told)
