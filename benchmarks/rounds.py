"""Interleaved rounds, their tables, and the verdicts: what is compared was measured in turns."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.load import Sample
from benchmarks.models import ROOT
from benchmarks.sides import Contender


@dataclass(frozen=True)
class Effort:
    """How much measuring is done.

    Attributes:
        rounds: How many times each side has its turn.
        seconds: How long a turn is.
        against: The sources of other trees of headrace, for what compares them.
        plot: Whether those that can draw do.
        data: The directory of the data set that fashion is trained on; None for one that is at hand.
    """

    rounds: int = 7
    seconds: float = 3.0
    against: tuple[Path, ...] = ()
    plot: bool = False
    data: Path | None = None


def interleaved(measures: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Any]]:
    """Measure A B C A B C …, so that a slow moment of the machine does not hit one side alone.

    Args:
        measures: What to measure, by name.
        rounds: How many turns each has.

    Returns:
        The measurements by name, in the order of the rounds.
    """
    measured: dict[str, list[Any]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            _progress(f"  round {number + 1} of {rounds}: {name}")
            measured[name].append(measure())
    _progress("")
    return measured


def _progress(said: str) -> None:
    """Write over the line before; not where the output is kept, which is the record."""
    if sys.stderr.isatty():
        print(f"\r{said:<79}\r{said}", end="", file=sys.stderr, flush=True)


def loaded(contender: Contender, effort: Effort, in_flight: int = 64) -> Callable[[], Sample]:
    """Warm a contender up, and say how to load it for one round."""
    rate = contender.load(1.0, in_flight).per_second
    return lambda: contender.load(effort.seconds, in_flight, rate)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratio of each round: the two numbers of one round were measured right after each other."""
    return [one / other for one, other in zip(above, below, strict=True)]


def middle(values: Sequence[float]) -> float:
    """The median: one disturbed round does not move it."""
    return statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, with the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{middle(values):.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def table(samples: Mapping[str, Sequence[Sample]], rows: int) -> None:
    """Print the medians of the rounds, a line a side.

    Args:
        samples: The rounds by side.
        rows: How many rows each request has.
    """
    head = (
        "",
        "requests/s",
        "rows/s",
        "CPU µs/req",
        "p50 ms",
        "p99 ms",
        "mean ms",
        "switches",
        "failed",
        "load busy",
    )
    lines = [head]
    for name, rounds in samples.items():
        lines.append(
            (
                name,
                f"{middle([one.per_second for one in rounds]):,.0f}",
                f"{middle([one.per_second * rows for one in rounds]):,.0f}",
                f"{middle([one.cpu_microseconds for one in rounds]):.1f}",
                f"{middle([one.p50_milliseconds for one in rounds]):.3f}",
                f"{middle([one.p99_milliseconds for one in rounds]):.3f}",
                f"{middle([one.mean_milliseconds for one in rounds]):.3f}",
                f"{middle([one.switches for one in rounds]):.2f}",
                f"{sum(one.failures for one in rounds)}/{sum(one.requests + one.failures for one in rounds)}",
                f"{middle([one.load_core_busy for one in rounds]):.0%}",
            )
        )
    print_lines(lines)


def print_lines(lines: Sequence[Sequence[str]]) -> None:
    """Print a table: the first line is its head, the first column is on the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  " + "  ".join([first, *others]).rstrip())


def verdict(target: str, reached: bool, number: str) -> bool:
    """Print whether a target is reached, and return it."""
    print(f"target {target}: {'reached' if reached else 'missed'}, {number}", flush=True)
    return reached


def print_machine() -> None:
    """Print what the numbers were measured on and with."""
    processors = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    name = processors[0].partition(":")[2].strip() if processors else platform.machine()
    packages = ", ".join(
        f"{package} {version(package)}" for package in ("onnxruntime", "h2corn", "uvloop", "numpy")
    )
    requirements = (ROOT / "benchmarks" / "peers" / "requirements.txt").read_text().splitlines()
    peers = ", ".join(line.replace("==", " ") for line in requirements if line and not line.startswith("#"))
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    print(f"machine: {len(processors)} cores of {name}, {system}")
    print(f"headrace: commit {_commit()}, {packages}")
    print(f"peers: {peers}", flush=True)


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
