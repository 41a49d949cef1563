"""Connections that are kept: what 1 to 10,000 of them cost a server, idle and active, over REST and gRPC.

Each active connection has one request of a tiny model under way at a time. Ratios are to one connection. The
limit of open files is raised to its hard limit; counts that it does not allow are left out, and that is said.
"""

from __future__ import annotations

import resource
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.load import Sample, measure_grpc_connections, measured, run_wrk
from benchmarks.processes import Server, cores, on_core, running
from benchmarks.rounds import Effort, middle, print_lines, verdict
from benchmarks.sides import headrace
from tests.faults.still_serves import infer_message
from tests.model_directories import affine, write

Port = Literal["http", "grpc"]

COUNTS = (1, 10, 100, 1000, 10_000)
_MODEL = "m0000"
_SPARE_FILES = 200
_ANSWER_BYTES = 35
"""Of the tiny model's, framed."""

_OPENED_PER_SECOND, _LEAST_CALLS = 1000, 4
_IDLE_SECONDS, _SETTLE_SECONDS = 10.0, 1.0
_SCRIPT = Path(__file__).with_name("turns.lua")
_OPENINGS: dict[Port, bytes] = {
    "http": b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
}


@dataclass(frozen=True)
class Costs:
    """What so many connections cost.

    Attributes:
        count: How many.
        idle_bytes: Memory of each that asks nothing.
        idle_share: The part of a processor that the server took while none asked anything.
        active: Rounds in which all ask.
        lone: Rounds in which one asks beside those that do not.
    """

    count: int
    idle_bytes: float
    idle_share: float
    active: list[Sample]
    lone: list[Sample]


def run(effort: Effort) -> None:
    """Measure a server of its own for each number of connections.

    Args:
        effort: How much measuring is done.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    counts = [count for count in COUNTS if hard == resource.RLIM_INFINITY or count + _SPARE_FILES <= hard]
    if len(counts) < len(COUNTS):
        print(f"  {hard} files may be open: {', '.join(map(str, COUNTS[len(counts) :]))} are left out")
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        write(models, _MODEL, 1, affine(1.0, 0.0))
        message = infer_message(_MODEL, 1.0)
        body = struct.pack(">BI", 0, len(message)) + message
        ports: dict[str, Port] = {"REST": "http", "gRPC": "grpc"}
        for name, port in ports.items():
            _tell(name, [_costs(models, body, port, count, effort) for count in counts])


def _costs(models: Path, body: bytes, port: Port, count: int, effort: Effort) -> Costs:
    seconds = max(1, round(effort.seconds))
    longer = seconds + count // _OPENED_PER_SECOND  # a load opens its connections first
    with running(headrace("json", models).command) as server:
        first = _load(server, port, body, 1, 1)  # what the first requests load and import
        before = server.counters().resident_bytes
        with _idle(server, port, count):
            time.sleep(_SETTLE_SECONDS)
            opened = server.counters()
            time.sleep(_IDLE_SECONDS)
            idle = server.counters()
            lone = [_load(server, port, body, 1, seconds) for _ in range(effort.rounds)]
        active = [_load(server, port, body, count, longer, first.per_second) for _ in range(effort.rounds)]
    return Costs(
        count,
        (opened.resident_bytes - before) / count,
        (idle.cpu_seconds - opened.cpu_seconds) / _IDLE_SECONDS,
        active,
        lone,
    )


@contextmanager
def _idle(server: Server, port: Port, count: int) -> Iterator[None]:
    """Connections that have each been answered once and ask nothing more."""
    opened = []
    try:
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", server.ports[port]), timeout=30)
            opened.append(one)
            one.sendall(_OPENINGS[port])
            if not one.recv(1024):
                raise RuntimeError(f"connection {len(opened)} was closed")
        yield
    finally:
        for one in opened:
            one.close()


def _load(
    server: Server, port: Port, body: bytes, connections: int, seconds: int, rate: float = 2000.0
) -> Sample:
    if port == "http":
        address = f"http://127.0.0.1:{server.ports[port]}"
        options = ["-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "20s"]
        command = on_core(cores()[1], ["wrk", *options, "-s", str(_SCRIPT), address, "--", "1"])
        return measured(server, lambda: run_wrk(command))
    calls = max(round(rate * seconds), _LEAST_CALLS * connections)
    return measure_grpc_connections(server, body, _ANSWER_BYTES, calls, connections)


def _tell(name: str, costs: list[Costs]) -> None:
    def of(rounds: list[Sample], number: str) -> float:
        return middle([getattr(sample, number) for sample in rounds])

    first = costs[0]
    head = (
        name, "memory each, idle, kB", "idle, of a processor", "p99 ms of one beside idle ones",
        "requests/s of all", "ratio", "CPU µs/req", "ratio", "p99 ms", "ratio", "failed",
    )  # fmt: skip
    lines = [head]
    for one in costs:
        cells = [f"{one.count:,}", f"{one.idle_bytes / 1e3:.1f}", f"{one.idle_share:.2%}"]
        cells.append(f"{of(one.lone, 'p99_milliseconds'):.2f}")
        for number, digits in (("per_second", 0), ("cpu_microseconds", 1), ("p99_milliseconds", 2)):
            value = of(one.active, number)
            cells += [f"{value:,.{digits}f}", f"{value / of(first.active, number):.2f}"]
        cells.append(str(sum(sample.failures for sample in (*one.active, *one.lone))))
        lines.append(tuple(cells))
    print_lines(lines)
    most = costs[-1]
    more = of(most.active, "cpu_microseconds") / of(first.active, "cpu_microseconds")
    verdict(f"{name}: a request over one of {most.count:,} costs ≤ 1.5 × one over the only", more <= 1.5,
            f"{more:.2f} ×")  # fmt: skip
    verdict(f"{name}: {most.count:,} idle connections take ≤ 1 % of a processor", most.idle_share <= 0.01,
            f"{most.idle_share:.2%}")  # fmt: skip
