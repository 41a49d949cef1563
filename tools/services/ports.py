"""Ports on this machine: free ones, and who has those that are not."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tools.services.errors import ServiceError

HOST = "127.0.0.1"
LOWEST = 15_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Say whether a server could listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do, who follow their own kind
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> tuple[int, ...]:
    """Find ports that nobody listens on, below those that the system gives to outgoing connections.

    A server that is killed and comes back on its port must find it free. From the system's own range, a
    client that tries to reconnect meanwhile could be given that port, and even connect to itself.

    Raises:
        ServiceError: There are not so many.
    """
    try:
        highest = int(RANGE.read_text().split()[0])
    except (OSError, ValueError):
        highest = 32_768
    candidates = list(range(LOWEST, max(highest, LOWEST + 1000)))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if is_free(port):
            found.append(port)
            if len(found) == count:
                return tuple(found)
    raise ServiceError(f"only {len(found)} of {count} ports from {LOWEST} to {highest} are free")


def holder(port: int) -> str:
    """Say who listens on a port, as far as this user may see: ``" (process 17: redis-server)"``."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = [line.split() for line in lines]
        inodes |= {row[9] for row in rows if int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A"}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                command = Path("/proc", link.parts[2], "cmdline").read_bytes().replace(b"\0", b" ")
                return f" (process {link.parts[2]}: {command.decode(errors='replace').strip()[:80]})"
        except OSError:  # it ended, or belongs to somebody else
            continue
    return ""
