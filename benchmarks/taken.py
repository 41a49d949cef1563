"""A process that only reads the clock: where its readings lie apart, its core was somebody else's meanwhile.

Latencies that are measured on this core at this time hold such waits, whatever answers; but who mostly sleeps
is let in sooner than this process, which never does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.models import ROOT
from benchmarks.processes import cores, on_core

SECONDS = 1.0
_READING_SECONDS = 20e-6
"""Readings further apart than this were interrupted; they take a tenth of a microsecond each."""
_HALVINGS = 40


class Taken(NamedTuple):
    """What others took of a core.

    Attributes:
        part: The part of the time that they had it.
        p99_milliseconds: How long this process waits for its core, at the 99th percentile of all moments.
    """

    part: float
    p99_milliseconds: float


def measured() -> tuple[Taken, Taken]:
    """Watch the servers' core and the load's for a second, in which nothing of ours uses them."""
    server, load = (on_core(core, [sys.executable, "-m", "benchmarks.taken"]) for core in cores())
    with (
        subprocess.Popen(server, cwd=ROOT, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(load, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other,
    ):
        first, second = (Taken(*map(float, process.communicate()[0].split())) for process in (one, other))
    return first, second


def wait(gaps: npt.NDArray[np.float64], seconds: float, part: float) -> float:
    """How long one waits for the core at the most, but for a part of all moments.

    Args:
        gaps: How long each time was that others had it.
        seconds: How long all that took.
        part: The part of moments at which one waits longer.
    """
    low, high = 0.0, float(gaps.max(initial=0.0))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.maximum(gaps - middle, 0.0).sum() > part * seconds:
            low = middle
        else:
            high = middle
    return high


def main() -> None:
    """Print what was taken: the part, and the wait in milliseconds."""
    gaps = []
    began = last = time.perf_counter()
    while last - began < SECONDS:
        now = time.perf_counter()
        if now - last > _READING_SECONDS:
            gaps.append(now - last)
        last = now
    found = np.array(gaps)
    print(found.sum() / (last - began), wait(found, last - began, 0.01) * 1e3)


if __name__ == "__main__":
    main()
