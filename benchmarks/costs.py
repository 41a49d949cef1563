"""What a process that does one job costs: user and system time, on cores of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.processes import cores

HEADRACE = (sys.executable, "-m", "headrace")


@dataclass(frozen=True)
class Job:
    """What a process took from its start to its end, with all its threads and children.

    Attributes:
        cpu_seconds: User and system time.
        seconds: By the clock.
        peak_bytes: The most memory it held.
        output: What it wrote to standard output.
    """

    cpu_seconds: float
    seconds: float
    peak_bytes: int
    output: str


def job(
    command: Sequence[str], folder: Path, *, core_count: int = 1, environment: Mapping[str, str] | None = None
) -> Job:
    """Run a command to its end, pinned.

    Args:
        command: The command.
        folder: Where it runs.
        core_count: On how many cores.
        environment: What is added to the environment.

    Raises:
        SystemExit: It failed.
    """
    pinned = ["taskset", "-c", ",".join(str(core) for core in cores()[:core_count]), *command]
    errors = folder / "errors.txt"
    began = time.perf_counter()
    with errors.open("wb") as log, (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            pinned,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{errors.read_text()[-2000:]}")
    return Job(used.ru_utime + used.ru_stime, seconds, used.ru_maxrss * 1024, said)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and those it starts, on the first of the benchmarks' cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def logloss(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.floating]) -> float:
    """The mean of the logarithmic loss."""
    clipped = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.log(np.where(labels > 0, clipped, 1 - clipped)).mean())


def auc(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.floating]) -> float:
    """The area under the curve; equal predictions count half."""
    _, ranks, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    middle_ranks = (np.cumsum(counts) - (counts - 1) / 2)[ranks]
    positives = labels > 0
    count = int(positives.sum())
    others = len(labels) - count
    return float((middle_ranks[positives].sum() - count * (count + 1) / 2) / (count * others))
