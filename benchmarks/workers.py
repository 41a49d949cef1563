"""Two workers beside one process: the cost of a request, the share of each worker, and memory."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.load import Sample, measure_grpc_connections, measure_http
from benchmarks.processes import running, session
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from benchmarks.sides import JSON_PATH, Contender, Wire, headrace

CONNECTIONS = ((1, 1), (64, 64), (256, 256), (64, 128))
"""Of one process, and of two workers: the same load for all, then the same for each worker."""

PROTOCOLS: dict[str, Wire] = {"REST": "json", "gRPC": "grpc"}

_FIRST_RATE = 3000.0
"""Calls a second that are asked for before it is known how many there are."""

_ONE, _TWO = "one process", "two workers"
_MEBIBYTE = 2**20
_WATCH_SECONDS = 0.2


@dataclass(frozen=True)
class Round:
    """One round of load on one server.

    Attributes:
        sample: What the load saw, and what the server spent.
        shares: The part of the requests that each process answered, in the order of the processes.
    """

    sample: Sample
    shares: list[float]


def run(effort: Effort) -> None:
    """Load a server of one process and one of two workers in turns, with one connection and with many.

    Args:
        effort: How much measuring is done.
    """
    everywhere = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with ExitStack() as stack:
        servers = {}
        for name, options in ((_ONE, ()), (_TWO, ("--workers", "2"))):
            side = headrace("json", name=name, options=options)
            servers[name] = side, stack.enter_context(running(side.command, everywhere))
        for protocol, wire in PROTOCOLS.items():
            sides = {
                name: Contender(replace(side, wire=wire), server, 1)
                for name, (side, server) in servers.items()
            }
            for few, many in CONNECTIONS:
                measures = {
                    _ONE: _load(sides[_ONE], effort.seconds, few),
                    _TWO: _load(sides[_TWO], effort.seconds, many),
                }
                _tell(protocol, {_ONE: few, _TWO: many}, interleaved(measures, effort.rounds))
        print_lines([("", "processes", "MiB, shared parts divided"), *map(_memory, sides.values())])


def _load(asked: Contender, seconds: float, connections: int) -> Callable[[], Round]:
    server, rate = asked.server, _FIRST_RATE

    def one_round() -> Round:
        nonlocal rate
        with _received(server.ports["grpc" if asked.side.wire == "grpc" else "http"]) as received:
            if asked.side.wire == "grpc":
                calls = max(round(rate * seconds), 4 * connections)
                sample = measure_grpc_connections(
                    server, asked.bodies[0], asked.answer_bytes, calls, connections
                )
                rate = sample.per_second
            else:
                sample = measure_http(
                    server, JSON_PATH, "application/json", asked.bodies, seconds, connections
                )
        return Round(sample, _shares(received))

    one_round()
    return one_round


@contextmanager
def _received(port: int) -> Iterator[dict[tuple[int, str], int]]:
    """Watch the connections at a port: by process and caller, the bytes that the process received.

    All requests are of one size, so these are in proportion to the requests.
    """
    received: dict[tuple[int, str], int] = {}
    ended = threading.Event()
    command = ["ss", "-tinpHO", "state", "established", "sport", "=", f":{port}"]

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for line in listed.splitlines():
                process, count = re.search(r"pid=(\d+)", line), re.search(r"bytes_received:(\d+)", line)
                if process and count:
                    received[int(process[1]), line.split()[3]] = int(count[1])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield received
    finally:
        ended.set()
        watcher.join()


def _shares(received: dict[tuple[int, str], int]) -> list[float]:
    """The part of all bytes that each process received."""
    by_process: dict[int, int] = {}
    for (process, _), count in sorted(received.items()):
        by_process[process] = by_process.get(process, 0) + count
    return [one / sum(by_process.values()) for one in by_process.values()]


def _tell(protocol: str, connections: dict[str, int], measured: dict[str, list[Round]]) -> None:
    head = (protocol, "requests/s", "CPU µs/req", "p50 ms", "p99 ms", "share of each", "failed")
    lines = [
        (
            f"{name}, connections: {connections[name]}",
            f"{middle([one.sample.per_second for one in rounds]):,.0f}",
            f"{middle([one.sample.cpu_microseconds for one in rounds]):.1f}",
            f"{middle([one.sample.p50_milliseconds for one in rounds]):.3f}",
            f"{middle([one.sample.p99_milliseconds for one in rounds]):.3f}",
            " ".join(
                f"{middle(list(part)):.0%}" for part in zip(*(one.shares for one in rounds), strict=True)
            ),
            f"{sum(one.sample.failures for one in rounds)}",
        )
        for name, rounds in measured.items()
    ]
    print_lines([head, *lines])
    cpu = {name: [one.sample.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
    more = ratios(cpu[_TWO], cpu[_ONE])
    told = f"{protocol}, {connections[_TWO]} connections beside {connections[_ONE]}"
    verdict(f"{told}: CPU per request ≤ 1.1 × one process's", middle(more) <= 1.1, spread(more))
    if connections[_TWO] > 1:
        shares = [max(one.shares) for one in measured[_TWO]]
        verdict(
            f"{told}: each worker takes 40 to 60 %", middle(shares) <= 0.6, f"the larger {spread(shares)}"
        )


def _memory(asked: Contender) -> tuple[str, str, str]:
    """What a server's processes take: what several of them share counts for each in part."""
    processes = session(asked.server.process.pid)
    kilobytes = 0
    for number in processes:
        said = Path(f"/proc/{number}/smaps_rollup").read_text()
        found = re.search(r"(?m)^Pss:\s+(\d+) kB", said)
        kilobytes += int(found[1]) if found else 0
    return asked.side.name, str(len(processes)), f"{kilobytes * 1024 / _MEBIBYTE:.0f}"
