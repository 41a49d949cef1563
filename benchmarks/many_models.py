"""Many models in one server: what 1, 10, 100 and 1,000 cost at the start, idle, scraped, and asked.

The models are the smallest there are (y = x + a), so that the numbers are the server's own. Ratios are to the
server of one model.
"""

from __future__ import annotations

import http.client
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from benchmarks.load import Sample, measured, run_wrk
from benchmarks.processes import Server, cores, on_core, running
from benchmarks.rounds import Effort, middle, print_lines, verdict
from benchmarks.sides import headrace
from tests.model_directories import affine, write

COUNTS = (1, 10, 100, 1000)
_SCRIPT = Path(__file__).with_name("turns.lua")
_IDLE_SECONDS, _READY_SECONDS = 10.0, 120.0
_CONNECTIONS, _SCRAPES = 16, 3
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Costs:
    """What a server of so many models cost.

    Attributes:
        models: How many.
        start_seconds: From the command until it was ready.
        start_cpu_seconds: What it took of a processor until then.
        resident_bytes: Its memory, once it had been idle.
        idle_share: The part of a processor that it took while nobody asked anything.
        scrape_bytes: The size of its metrics.
        scrape_cpu_seconds: What it took of a processor to tell them.
        rounds: By what was asked, the rounds of it.
    """

    models: int
    start_seconds: float
    start_cpu_seconds: float
    resident_bytes: int
    idle_share: float
    scrape_bytes: int
    scrape_cpu_seconds: float
    rounds: dict[str, list[Sample]]

    def of(self, what: str, number: str) -> float:
        """The median of a number of the rounds of something."""
        return middle([getattr(sample, number) for sample in self.rounds[what]])


def run(effort: Effort) -> None:
    """Measure a server of each size after the other.

    Args:
        effort: How much measuring is done.
    """
    found = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                write(Path(folder), f"m{number:04}", 1, affine(1.0, number))
            found.append(_costs(Path(folder), count, effort))
    _tell(found)


def _costs(models: Path, count: int, effort: Effort) -> Costs:
    began = time.monotonic()
    with running(headrace("json", models).command) as server:
        until = began + _READY_SECONDS
        while _get(server, "/v2/health/ready")[0] != HTTPStatus.OK:
            if time.monotonic() > until:
                raise RuntimeError(f"{count} models were not ready after {_READY_SECONDS:g} s")
            time.sleep(0.02)
        ready, started = time.monotonic() - began, server.counters()
        time.sleep(_IDLE_SECONDS / 5)  # what follows upon a start is over then
        before = server.counters().cpu_seconds
        time.sleep(_IDLE_SECONDS)
        idle = server.counters()
        _get(server, "/metrics")  # the first one imports what tells them
        before_scrapes = server.counters().cpu_seconds
        scraped = [len(_get(server, "/metrics")[1]) for _ in range(_SCRAPES)]
        scrape_cpu = (server.counters().cpu_seconds - before_scrapes) / _SCRAPES
        rounds: dict[str, list[Sample]] = {}
        for _ in range(effort.rounds):
            for what, ask in _asked(server, count, max(1, round(effort.seconds))).items():
                rounds.setdefault(what, []).append(ask())
        share = (idle.cpu_seconds - before) / _IDLE_SECONDS
        return Costs(
            count, ready, started.cpu_seconds, idle.resident_bytes, share, scraped[-1], scrape_cpu, rounds
        )


def _get(server: Server, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _asked(server: Server, count: int, seconds: int) -> dict[str, Callable[[], Sample]]:
    lone, one = _wrk(server, 1, 1, seconds), _wrk(server, 1, _CONNECTIONS, seconds)
    spread = _wrk(server, count, _CONNECTIONS, seconds)
    longer = _wrk(server, count, _CONNECTIONS, seconds + 1)
    scrapes = _wrk(server, 0, 1, seconds + 1)

    def alone(command: Sequence[str]) -> Callable[[], Sample]:
        return lambda: measured(server, lambda: run_wrk(list(command)))

    def beside(command: Sequence[str], other: Sequence[str]) -> Callable[[], Sample]:
        def both() -> Sample:
            with subprocess.Popen(other, stdout=subprocess.DEVNULL) as process:
                try:
                    return alone(command)()
                finally:
                    process.wait(timeout=_READY_SECONDS)

        return both

    return {
        "one": alone(one),
        "spread": alone(spread),
        "lone": alone(lone),
        "lone beside all": beside(lone, longer),
        "lone beside scrapes": beside(lone, scrapes),
    }


def _wrk(server: Server, models: int, connections: int, seconds: int) -> list[str]:
    options = ["-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "20s"]
    url = f"http://127.0.0.1:{server.ports['http']}/metrics"
    return on_core(cores()[1], ["wrk", *options, "-s", str(_SCRIPT), url, "--", str(models)])


def _tell(found: Sequence[Costs]) -> None:
    first = found[0]
    head = ("models", *(f"{costs.models:,}" for costs in found))
    rows: tuple[tuple[str, Callable[[Costs], str]], ...] = (
        ("start, s", lambda costs: f"{costs.start_seconds:.2f}"),
        ("processor at the start, more than of one, ms a model", lambda costs: _each(
            costs, (costs.start_cpu_seconds - first.start_cpu_seconds) * 1e3)),
        ("memory, MB", lambda costs: f"{costs.resident_bytes / _MEGABYTE:.0f}"),
        ("memory, more than of one, kB a model", lambda costs: _each(
            costs, (costs.resident_bytes - first.resident_bytes) / 1e3)),
        ("idle, of a processor", lambda costs: f"{costs.idle_share:.2%}"),
        ("/metrics, MB", lambda costs: f"{costs.scrape_bytes / _MEGABYTE:.2f}"),
        ("/metrics, processor, ms", lambda costs: f"{costs.scrape_cpu_seconds * 1e3:.0f}"),
        ("requests to one, CPU µs", lambda costs: f"{costs.of('one', 'cpu_microseconds'):.1f}"),
        ("requests to all in turns, CPU µs", lambda costs: f"{costs.of('spread', 'cpu_microseconds'):.1f}"),
        *((f"p99 of a {what}, ms", lambda costs, what=what: f"{costs.of(what, 'p99_milliseconds'):.2f}")
          for what in ("lone", "lone beside all", "lone beside scrapes")),
    )  # fmt: skip
    print_lines([head, *((name, *(say(costs) for costs in found)) for name, say in rows)])
    print_lines([("as ratios to one model", *head[1:]), *(
        (name, *(f"{costs.of(what, number) / first.of(what, number):.2f}" for costs in found))
        for name, what, number in (
            ("requests to one, CPU", "one", "cpu_microseconds"),
            ("requests to all, CPU", "spread", "cpu_microseconds"),
            ("p99 of a lone one", "lone", "p99_milliseconds"),
            ("p99 beside all", "lone beside all", "p99_milliseconds"),
            ("p99 beside scrapes", "lone beside scrapes", "p99_milliseconds"),
        )
    )])  # fmt: skip
    _judge(found)
    bad = sum(sample.failures for costs in found for rounds in costs.rounds.values() for sample in rounds)
    verdict("no request fails", not bad, f"{bad} did")


def _each(costs: Costs, more: float) -> str:
    return f"{more / (costs.models - 1):.1f}" if costs.models > 1 else "–"


def _judge(found: Sequence[Costs]) -> None:
    first, *_, some, most = found
    each = [
        (costs.start_cpu_seconds - first.start_cpu_seconds) / (costs.models - 1) for costs in (some, most)
    ]
    verdict("a start of 1,000 takes ≤ 1.5 × as long a model as one of 100", each[1] <= 1.5 * each[0],
            f"{each[1] / each[0]:.2f} ×")  # fmt: skip
    verdict("1,000 idle models take ≤ 6 % of a processor", most.idle_share <= 0.06, f"{most.idle_share:.1%}")
    more = most.of("one", "cpu_microseconds") / first.of("one", "cpu_microseconds")
    verdict("a request to one of 1,000 costs ≤ 1.1 × that to the only one", more <= 1.1, f"{more:.2f} ×")
