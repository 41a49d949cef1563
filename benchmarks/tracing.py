"""What traces and the access log cost a plain request of 1 row, beside 63 others: processor time.

A collector takes the spans, on another core. First whole servers, with one call of a hundred recorded and
without. Then, as `seam`, requests from ASGI's events to ASGI's events, without the server and the network
under it, which take about as long again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import seam
from benchmarks.models import model_directory
from benchmarks.processes import cores
from benchmarks.rounds import Effort, interleaved, loaded, middle, print_lines, ratios, spread, verdict
from benchmarks.sides import Wire, contenders, headrace
from benchmarks.trace_sink import receiving

OFF = "neither"
_ONE = "traces, 1 % sampled"
_NO_LIMIT = 1_000_000
_WIRES: Mapping[Wire, str] = {"grpc": "gRPC", "json": "REST"}
SIDES: Mapping[str, tuple[str, bool]] = {
    OFF: ("", False),
    "traces, none sampled": ("0", False),
    _ONE: ("0.01", False),
    "traces, 100 % sampled": ("1", False),
    "access log": ("", True),
}
"""Which part of the calls is recorded, and whether there is an access log."""

STARTS, ROUND_SECONDS = 2, 0.5

MOST_RATIO = 1.03
_OFTEN, _EACH_SECOND = ({"OTEL_BSP_SCHEDULE_DELAY": milliseconds} for milliseconds in ("100", "1000"))
"""Spans are sent within a turn, not after it; the default is each five seconds."""


def run(effort: Effort) -> None:
    """Measure all sides in turns.

    Args:
        effort: Its rounds and seconds together are how long each side is measured.
    """
    rounds = max(3, round(effort.rounds * effort.seconds / ROUND_SECONDS / STARTS))
    measured: dict[str, list[list[dict[str, float]]]] = {wire: [] for wire in seam.WIRES}
    with tempfile.TemporaryDirectory() as directory, receiving(cores()[1]) as endpoint:
        for wire in _WIRES:
            _whole_servers(wire, endpoint, effort)
        seam.write_bodies(Path(directory))
        for start in range(STARTS):
            with _started(Path(directory), endpoint, start) as running:
                for wire in seam.WIRES:
                    measured[wire].append(_in_turns(running, wire, rounds))
    for wire, name in seam.WIRES.items():
        _report(name, measured[wire])


def _whole_servers(wire: Wire, endpoint: str, effort: Effort) -> None:
    options = ("--tracing-endpoint", endpoint, "--tracing-sample-rate", "0.01")
    options += ("--tracing-max-traces-per-second", str(_NO_LIMIT))
    sides = [headrace(wire, name=name, options=more) for name, more in ((OFF, ()), (_ONE, options))]
    sides = [replace(side, command=replace(side.command, environment=_EACH_SECOND)) for side in sides]
    with contenders(sides, 1) as started:
        measures = {name: loaded(contender, effort) for name, contender in started.items()}
        samples = interleaved(measures, effort.rounds)
    off, one = ([sample.cpu_microseconds for sample in samples[name]] for name in (OFF, _ONE))
    ratio = ratios(one, off)
    print_lines(
        [
            (f"{_WIRES[wire]}, whole servers", "CPU µs/req", "beside neither"),
            (OFF, f"{middle(off):.1f}", ""),
            (_ONE, f"{middle(one):.1f}", spread(ratio, 3)),
        ]
    )
    verdict(f"{_WIRES[wire]}, {_ONE}: ≤ {MOST_RATIO} of none", middle(ratio) <= MOST_RATIO, spread(ratio, 3))


@contextmanager
def _started(directory: Path, endpoint: str, start: int) -> Iterator[dict[str, seam.Running]]:
    with ExitStack() as stack:
        running = {}
        for name in seam.turned(list(SIDES), start):
            rate, is_logged = SIDES[name]
            log = str(directory / "access.log") if is_logged else ""
            arguments = (str(model_directory()), str(directory), rate, endpoint, log)
            added = {"PYTHONHASHSEED": str(start), **_OFTEN}
            running[name] = seam.begun(stack, "benchmarks.tracing_side", arguments, added)
        yield running


def _in_turns(running: Mapping[str, seam.Running], wire: str, rounds: int) -> list[dict[str, float]]:
    """Rounds of all sides, each in another order, of turns that take about as long."""
    requests = {}
    for name, side in running.items():
        some = side.microseconds(wire, 640)
        requests[name] = max(640, round(ROUND_SECONDS * 1e6 / some / 64) * 64)
    return [
        {
            name: running[name].microseconds(wire, requests[name])
            for name in seam.turned(list(running), number)
        }
        for number in range(rounds)
    ]


def _report(wire: str, starts: list[list[dict[str, float]]]) -> None:
    cpu = {name: [[one[name] for one in rounds] for rounds in starts] for name in SIDES}
    flat = {name: [value for rounds in cpu[name] for value in rounds] for name in SIDES}
    lines = [("", f"{wire}, CPU µs/req", "beside neither", "by start")]
    for name in SIDES:
        by_start = [middle(ratios(mine, its)) for mine, its in zip(cpu[name], cpu[OFF], strict=True)]
        ratio = middle(ratios(flat[name], flat[OFF]))
        lines.append((name, f"{middle(flat[name]):.2f}", f"{ratio:.3f}", spread(by_start, 3)))
    print_lines(lines)
