"""Load on a server from the other core: gRPC by h2load, HTTP/1.1 by wrk; what comes out is a Sample."""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.h2load import METHOD, H2load, found
from benchmarks.processes import Server, cores, on_core

GRPC_BODIES = 4
HTTP_BODIES = 64
_WRK_SCRIPT = Path(__file__).with_name("post.lua")
_LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Sample:
    """One round of load on one server.

    Attributes:
        requests: How many were answered well.
        failures: How many were not: HTTP status, gRPC status, connection or timeout.
        seconds: From the first request to the last answer.
        cpu_microseconds: What the server's processes spent per request.
        switches: Context switches of the server's processes per request.
        p50_milliseconds: Latency of the middle request.
        p99_milliseconds: Latency of the slowest hundredth.
        mean_milliseconds: Mean latency.
        load_core_busy: The part of its core that the load used: near 1, it is the load that was measured.
    """

    requests: int
    failures: int
    seconds: float
    cpu_microseconds: float
    switches: float
    p50_milliseconds: float
    p99_milliseconds: float
    mean_milliseconds: float
    load_core_busy: float

    @property
    def per_second(self) -> float:
        """Requests answered per second."""
        return self.requests / self.seconds


@dataclass(frozen=True)
class Outcome:
    """What a load program saw.

    Attributes:
        good: How many requests were answered well.
        bad: How many were not.
        seconds: From the first request to the last answer.
        p50: Latency of the middle one, in milliseconds.
        p99: Of the slowest hundredth.
        mean: Of all.
    """

    good: int
    bad: int
    seconds: float
    p50: float
    p99: float
    mean: float


def measure_grpc(
    server: Server,
    bodies: Sequence[bytes],
    answer_bytes: int,
    requests: int,
    in_flight: int,
    method: str = METHOD,
) -> Sample:
    """Send a number of calls, always so many in flight.

    Args:
        server: The server.
        bodies: Framed messages; each goes over a connection of its own.
        answer_bytes: The size of a good answer with its frame.
        requests: How many in all.
        in_flight: How many at a time, over all connections; one connection, and one body, only if this is 1.
        method: What is called.
    """
    with tempfile.TemporaryDirectory() as folder:
        load = H2load(Path(folder), server.ports["grpc"], bodies[:in_flight], requests, method)

        def finish() -> Outcome:
            load.closed_loop(in_flight)
            calls = load.finish(answer_bytes)
            p50, p99 = np.percentile(calls.spent, [50, 99]) * 1e3
            mean = calls.spent.mean() * 1e3
            return Outcome(calls.good, calls.sent - calls.good, calls.seconds, p50, p99, mean)

        try:
            return measured(server, finish)
        finally:
            load.stop()


def measure_grpc_connections(
    server: Server, body: bytes, answer_bytes: int, requests: int, connections: int, method: str = METHOD
) -> Sample:
    """Send a number of calls, one in flight on each connection, by one h2load: all have the same body.

    Args:
        server: The server.
        body: A framed message.
        answer_bytes: The size of a good answer with its frame.
        requests: How many in all.
        connections: How many.
        method: What is called.
    """
    url = f"http://127.0.0.1:{server.ports['grpc']}{method}"

    def run(folder: Path) -> Outcome:
        file, log = folder / "body", folder / "log"
        file.write_bytes(body)
        options = ["-n", str(requests), "-c", str(connections), "-m", "1", "-d", str(file)]
        options += [f"--log-file={log}", "-H", "content-type: application/grpc", "-H", "te: trailers"]
        command = on_core(cores()[1], ["h2load", *options, url])
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True)
        # h2load knows nothing of gRPC's status, but a call that failed brings no message.
        received = int(found(r"\((\d+)\) data", done.stdout)) // answer_bytes
        good = min(received, int(found(r"(\d+) succeeded", done.stdout)))
        begins, spent = np.loadtxt(log, usecols=(0, 2), ndmin=2).T
        p50, p99 = np.percentile(spent, [50, 99]) / 1e3
        took = float((begins + spent).max() - begins.min()) / 1e6
        return Outcome(good, requests - good, took, p50, p99, float(spent.mean()) / 1e3)

    with tempfile.TemporaryDirectory() as folder:
        return measured(server, lambda: run(Path(folder)))


def measure_http(
    server: Server,
    path: str,
    content_type: str,
    bodies: Sequence[bytes],
    seconds: float,
    connections: int = 64,
) -> Sample:
    """Send POST requests for some seconds, one in flight on each connection.

    Args:
        server: The server.
        path: Where to.
        content_type: Of the bodies.
        bodies: Sent in turns.
        seconds: How long.
        connections: How many.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, body in enumerate(bodies):
            Path(folder, str(number)).write_bytes(body)
        options = ["-t", "1", "-c", str(connections), "-d", f"{max(1, round(seconds))}s", "--timeout", "20s"]
        url = f"http://127.0.0.1:{server.ports['http']}{path}"
        arguments = [folder, str(len(bodies)), content_type]
        command = ["wrk", *options, "-s", str(_WRK_SCRIPT), url, "--", *arguments]
        return measured(server, lambda: run_wrk(on_core(cores()[1], command)))


def run_wrk(command: list[str]) -> Outcome:
    """Run wrk with a script that prints what happened as `post.lua` does.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"wrk ended with {done.returncode}:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    said = json.loads(found(r"(?m)^(\{.*\})$", done.stdout))
    spent = [said[name] / 1e3 for name in ("p50", "p99", "mean")]
    return Outcome(said["good"], said["bad"], said["microseconds"] / 1e6, *spent)


def measured(server: Server, run: Callable[[], Outcome]) -> Sample:
    """Run a load, and count what the server spent meanwhile.

    Args:
        server: The server.
        run: Makes the load.
    """
    before, load_before = server.counters(), _children_seconds()
    outcome = run()
    after = server.counters()
    answered = max(outcome.good, 1)
    return Sample(
        requests=outcome.good,
        failures=outcome.bad,
        seconds=outcome.seconds,
        cpu_microseconds=(after.cpu_seconds - before.cpu_seconds) / answered * 1e6,
        switches=(after.switches - before.switches) / answered,
        p50_milliseconds=outcome.p50,
        p99_milliseconds=outcome.p99,
        mean_milliseconds=outcome.mean,
        load_core_busy=(_children_seconds() - load_before) / outcome.seconds,
    )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
