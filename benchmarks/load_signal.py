"""Whether `headrace_load` leads the latency: arrivals rise from a tenth of the capacity to more than it."""

from __future__ import annotations

import http.client
import re
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.h2load import H2load
from benchmarks.models import CACHE, model_directory
from benchmarks.processes import Server, running
from benchmarks.rounds import Effort, print_lines, verdict
from benchmarks.sides import Contender, headrace
from benchmarks.swap import now

ROWS = 64
CONNECTIONS = 8
IN_FLIGHT = 64
STEP_SECONDS = 6.0
SCRAPE_SECONDS = 0.5
OBJECTIVE_SECONDS = 0.05
SLICE_SECONDS = 1.0
SHARES = tuple(percent / 100 for percent in range(10, 160, 10))
"""Asked for; fewer come, for h2load's timers are late, and the tables tell of those that came."""

THRESHOLD = 0.8
PLOT = CACHE / "load_signal.png"


@dataclass(frozen=True)
class Step:
    """What was seen at one rate.

    Attributes:
        share: The rate, in parts of the capacity.
        per_second: Requests that came.
        load: The gauge: the median of the second half of the step.
        p50: What the client saw, in seconds.
        p99: The same, second by second: the median, so that a moment in which the machine stands still is not
            taken for a server that is late.
        loads: When the gauge was read, in seconds since the epoch, and what it said.
        late: The seconds whose p99 was above the objective, each by its beginning.
    """

    share: float
    per_second: float
    load: float
    p50: float
    p99: float
    loads: tuple[tuple[float, float], ...]
    late: tuple[float, ...]


def run(effort: Effort) -> None:
    """Ramp once, and print what the gauge and the client say at each step.

    Args:
        effort: Not used: a ramp is one round.
    """
    del effort
    capacity, steps = _ramp()
    lines: list[tuple[str, ...]] = [
        ("at s", "of capacity", "requests/s", "headrace_load", "p50 ms", "p99 ms", "")
    ]
    for number, step in enumerate(steps):
        missed = "over the objective" if step.p99 > OBJECTIVE_SECONDS else ""
        moment = f"{number * STEP_SECONDS:.0f}"
        numbers = f"{step.share:.0%}", f"{step.per_second:,.0f}", f"{step.load:.2f}"
        lines.append((moment, *numbers, f"{step.p50 * 1e3:.1f}", f"{step.p99 * 1e3:.1f}", missed))
    print_lines(lines)
    print(f"capacity: {capacity:,.0f} requests/s of {ROWS} rows; objective: {OBJECTIVE_SECONDS * 1e3:.0f} ms")
    warned, left = _warned_at(steps), _left_at(steps)
    began = steps[0].loads[0][0]
    said = f"it did at {warned - began:.0f} s" if warned < float("inf") else "it never did"
    said += f", p99 left at {left - began:.0f} s" if left < float("inf") else ", p99 never left"
    verdict(f"the gauge reaches {THRESHOLD} before p99 leaves the objective", warned < left, said)
    quiet = [step.load for step in steps if step.share <= 0.5]
    verdict("at half the capacity and below it stays under 0.8", max(quiet) < THRESHOLD, f"{max(quiet):.2f}")
    _plot(steps)
    print(f"plot: {PLOT}")


def _warned_at(steps: list[Step]) -> float:
    """When the gauge first was at its threshold."""
    return next((at for step in steps for at, load in step.loads if load >= THRESHOLD), float("inf"))


def _left_at(steps: list[Step]) -> float:
    """When p99 first left the objective for more than a moment: for most of a step's seconds."""
    return next((step.late[0] for step in steps if step.p99 > OBJECTIVE_SECONDS), float("inf"))


def _ramp() -> tuple[float, list[Step]]:
    source = model_directory()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=CACHE)))
        models = folder / "models"
        shutil.copytree(source, models)
        (models / "ctr" / "headrace.toml").write_text(f"[objective]\nlatency_seconds = {OBJECTIVE_SECONDS}\n")
        side = headrace("grpc", models)
        server = stack.enter_context(running(side.command))
        contender = Contender(side, server, ROWS)
        contender.load(1.0, IN_FLIGHT)
        capacity = contender.load(4.0, IN_FLIGHT).per_second
        scrape(server)
        time.sleep(2 * STEP_SECONDS)  # what was before is forgotten
        return capacity, [_step(contender, folder, share, share * capacity) for share in SHARES]


def _step(contender: Contender, folder: Path, share: float, per_second: float) -> Step:
    """Load for some seconds, and scrape meanwhile."""
    where = folder / f"{share:.2f}"
    where.mkdir()
    bodies = [contender.bodies[number % len(contender.bodies)] for number in range(CONNECTIONS)]
    load = H2load(where, contender.server.ports["grpc"], bodies, round(per_second * STEP_SECONDS))
    load.open_loop(per_second, seed=round(share * 100))
    loads = []
    until = time.monotonic() + STEP_SECONDS
    while time.monotonic() < until:
        time.sleep(SCRAPE_SECONDS)
        loads.append((now(), scrape(contender.server)))
    calls = load.finish(contender.answer_bytes)
    came = calls.sent / calls.seconds
    starts = np.arange(calls.begins.min(), calls.begins.max() - SLICE_SECONDS / 2, SLICE_SECONDS)
    inside = [(calls.begins >= start) & (calls.begins < start + SLICE_SECONDS) for start in starts]
    p99s = [float(np.percentile(calls.spent[part], 99)) for part in inside]
    late = tuple(float(start) for start, p99 in zip(starts, p99s, strict=True) if p99 > OBJECTIVE_SECONDS)
    median = float(np.median([said for _, said in loads[len(loads) // 2 :]]))
    shown = share * came / per_second
    return Step(
        shown, came, median, float(np.median(calls.spent)), float(np.median(p99s)), tuple(loads), late
    )


def scrape(server: Server) -> float:
    """Ask for the gauge; 0 while there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = re.search(r"^headrace_load (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _plot(steps: list[Step]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure((8, 4.5), layout="constrained")
    left = figure.add_subplot()
    shares = [step.share * 100 for step in steps]
    left.plot(shares, [step.load for step in steps], "o-", color="#1f5fa8", label="headrace_load")
    left.axhline(THRESHOLD, color="#1f5fa8", linestyle=":", linewidth=1)
    left.set_xlabel("arrivals, % of capacity")
    left.set_ylabel("headrace_load")
    right = left.twinx()
    right.plot(shares, [step.p99 * 1e3 for step in steps], "s-", color="#d1701f", label="p99")
    right.axhline(OBJECTIVE_SECONDS * 1e3, color="#d1701f", linestyle=":", linewidth=1)
    right.set_yscale("log")
    right.set_ylabel("p99, ms")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    FigureCanvasAgg(figure).print_figure(PLOT, dpi=120)
