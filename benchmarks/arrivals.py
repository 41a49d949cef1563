"""How soon a version serves where no time is left for it, and what its load costs requests meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.h2load import Calls, H2load
from benchmarks.models import CACHE
from benchmarks.processes import Server, cores, on_core, running
from benchmarks.rounds import Effort, print_lines, verdict
from benchmarks.sides import Contender, Side, headrace
from benchmarks.swap import now, prepare, states
from headrace.versions.manifest import publish

ROWS = 64
CONNECTIONS = 16
IN_FLIGHT = 64
PART_OF_CAPACITY = 0.9
QUIET_SECONDS = 4.0
SETTLE_SECONDS = 1.0
LIMIT_SECONDS = 20.0
FIRST_VERSION = 100
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""An ordinary user may lower the priority of a thread, and not raise it again."""

P99_TARGET = 1.3
SECONDS_TARGET = 10.0


@dataclass(frozen=True)
class Situation:
    """What else the processor is wanted for.

    Attributes:
        name: What the table calls it.
        saturated: Whether the requests take all they can get, instead of 90 % of it.
        busy: Whether a process on each core computes for ever.
    """

    name: str
    saturated: bool = False
    busy: bool = False


SITUATIONS = (
    Situation("90 % of capacity"),
    Situation("saturated", saturated=True),
    Situation("90 %, two busy loops", busy=True),
)


@dataclass(frozen=True)
class Arrival:
    """One version, in seconds since the epoch.

    Attributes:
        quiet: When the time before it began in which nothing loads.
        published: When it was published.
        serves: When it was available.
    """

    quiet: float
    published: float
    serves: float


def run(effort: Effort) -> None:
    """Publish versions with a manifest, each after a time in which nothing loads, and compare the two.

    Args:
        effort: How much measuring is done: as many versions as rounds.
    """
    lines: list[tuple[str, ...]] = [
        ("", "p99 ms without", "p99 ms while it loads", "ratio", "ready after s", "at most")
    ]
    reached = []
    for situation in SITUATIONS:
        calls, arrivals = _measure(situation, effort.rounds)
        without, loading = _p99(calls, arrivals)
        took = [arrival.serves - arrival.published for arrival in arrivals]
        ratio = loading / without
        numbers = (
            f"{without:.2f}",
            f"{loading:.2f}",
            f"{ratio:.2f}",
            f"{median(took):.1f}",
            f"{max(took):.1f}",
        )
        lines.append((situation.name, *numbers))
        reached.append((situation.name, ratio, max(took)))
    print_lines(lines)
    for name, ratio, seconds in reached:
        verdict(f"{name}: p99 ≤ {P99_TARGET} × without a load", ratio <= P99_TARGET, f"{ratio:.2f} ×")
        verdict(f"{name}: ready within {SECONDS_TARGET:g} s", seconds <= SECONDS_TARGET, f"{seconds:.1f} s")


def _measure(situation: Situation, rounds: int) -> tuple[Calls, list[Arrival]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory, versions = stack.enter_context(_versions(rounds))
        side = _without_rights(headrace("grpc", directory, "headrace with no time left"))
        server = stack.enter_context(running(side.command))
        contender = Contender(side, server, ROWS)
        contender.load(1.0)
        if situation.busy:
            stack.enter_context(busy_loops())
        load = _begin(
            situation, contender, folder, rounds * (QUIET_SECONDS + SETTLE_SECONDS + SECONDS_TARGET)
        )
        stack.callback(load.stop)
        time.sleep(SETTLE_SECONDS)
        arrivals = []
        for number, version in enumerate(versions, FIRST_VERSION + 1):
            quiet = now()
            time.sleep(QUIET_SECONDS)
            published = now()
            version.rename(directory / "ctr" / str(number))
            arrivals.append(Arrival(quiet, published, _wait_for(server, number)))
            time.sleep(SETTLE_SECONDS)
            if not load.under_way:
                break
        return load.cut_short(), arrivals


def _without_rights(side: Side) -> Side:
    return replace(side, command=replace(side.command, arguments=(*WITHOUT_RIGHTS, *side.command.arguments)))


@contextmanager
def _versions(rounds: int) -> Iterator[tuple[Path, list[Path]]]:
    """A model directory with a first version, and those that follow, made elsewhere on its file system."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="arrivals-") as name:
        folder = Path(name)
        made = []
        for number in range(rounds + 1):
            source = prepare(folder / f"source-{number}", number)
            made.append(publish(source, folder / f"made-{number}", FIRST_VERSION + number))
            shutil.rmtree(source)
        (folder / "models" / "ctr").mkdir(parents=True)
        made[0].rename(folder / "models" / "ctr" / str(FIRST_VERSION))
        yield folder / "models", made[1:]


@contextmanager
def busy_loops() -> Iterator[None]:
    """A process that computes for ever on the server's core, and one on the load's."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(on_core(core, command)) for core in cores()]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _begin(situation: Situation, contender: Contender, folder: Path, seconds: float) -> H2load:
    """Begin the load: as many requests as would do for longer than the measuring takes."""
    capacity = contender.load(2.0, IN_FLIGHT).per_second
    bodies = [contender.bodies[number % len(contender.bodies)] for number in range(CONNECTIONS)]

    def load(where: Path, for_seconds: float) -> H2load:
        where.mkdir()
        return H2load(where, contender.server.ports["grpc"], bodies, round(capacity * for_seconds))

    if situation.saturated:
        begun = load(folder / "load", 2 * seconds)
        begun.closed_loop(IN_FLIGHT)
        return begun
    asked = wanted = PART_OF_CAPACITY * capacity
    trial = load(folder / "trial", 1.5)
    trial.open_loop(asked, seed=1)
    calls = trial.finish(contender.answer_bytes)
    asked *= min(1.3, wanted * calls.seconds / calls.sent)  # fewer come than are asked for
    begun = load(folder / "load", seconds)
    begun.open_loop(asked, seed=2)
    return begun


def _wait_for(server: Server, version: int) -> float:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if states(server).get(version) == "AVAILABLE":
            return now()
        time.sleep(0.03)
    raise RuntimeError(f"version {version} did not arrive within {LIMIT_SECONDS} s: {states(server)}")


def _p99(calls: Calls, arrivals: list[Arrival]) -> tuple[float, float]:
    """The p99 of what was sent while nothing loaded, and of what was open while something did, in ms."""
    ends = calls.begins + calls.spent

    def of(parts: list[npt.NDArray[np.bool_]]) -> float:
        return float(np.percentile(calls.spent[np.logical_or.reduce(parts)], 99)) * 1e3

    without = of([(calls.begins >= one.quiet) & (calls.begins < one.published) for one in arrivals])
    return without, of([(ends >= one.published) & (calls.begins <= one.serves) for one in arrivals])
