"""Three times as many requests as a server can answer, with deadlines: how many are answered in time?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.h2load import METHOD
from benchmarks.models import CACHE, wide_directory
from benchmarks.open_loop import Ended, Load, Seen, send
from benchmarks.rounds import Effort, interleaved, middle, print_lines, spread, verdict
from benchmarks.sides import JSON_PATH, Contender, Side, contenders, fastapi, grpcio, headrace

ROWS = 32
DEADLINE_SECONDS = 0.1
TIMES_CAPACITY = 3.0
IN_FLIGHT = 16
"""Two full batches; and what the peers take at a time where they are told a limit."""

SETTLE_SECONDS = 1.0
OVERLOAD_SECONDS = 6.0
AFTER_SHARE, AFTER_SECONDS = 0.5, 4.0
SLICE_SECONDS = 0.25
IN_TIME = 0.99
IDLE_SHARE, LONGEST_BACKLOG_SECONDS = 0.1, 120.0
PLOT = CACHE / "overload.png"

GOODPUT_TARGET, REFUSAL_TARGET_SECONDS, RECOVERY_TARGET_SECONDS = 0.9, 0.005, 2.0


@dataclass(frozen=True)
class Round:
    """What one server did in one round.

    Attributes:
        capacity: Requests answered a second, each followed by the next.
        seen: What became of those that came too fast, and of those that came afterwards.
        overload_ends: When the last of the former was due, in seconds from the beginning.
    """

    capacity: float
    seen: Seen
    overload_ends: float

    @property
    def in_time(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered within their deadline."""
        return (self.seen.how == Ended.ANSWERED) & (self.seen.spent <= DEADLINE_SECONDS)

    @property
    def overloaded(self) -> npt.NDArray[np.bool_]:
        """Which requests count: those due when the queues were full, until it ended."""
        return (self.seen.due >= SETTLE_SECONDS) & (self.seen.due < self.overload_ends)

    @property
    def goodput(self) -> float:
        """Answers in time, in parts of the capacity."""
        seconds = self.overload_ends - SETTLE_SECONDS
        return float((self.in_time & self.overloaded).sum()) / seconds / self.capacity

    def part(self, *ends: Ended) -> float:
        """Which part of the requests ended so."""
        return float(np.isin(self.seen.how[self.overloaded], ends).mean())

    def spent(self, how: Ended, percentile: float) -> float:
        """How long requests took that ended so, in seconds; NaN if none did."""
        spent = self.seen.spent[self.overloaded & (self.seen.how == how)]
        return float(np.percentile(spent, percentile)) if len(spent) else float("nan")

    @property
    def recovery(self) -> float:
        """Seconds after the overload until nearly all requests of half a second are answered in time."""
        good_before = False
        for start in np.arange(self.overload_ends, self.seen.due[-1] - SLICE_SECONDS, SLICE_SECONDS):
            inside = (self.seen.due >= start) & (self.seen.due < start + SLICE_SECONDS)
            good = bool(self.in_time[inside].mean() >= IN_TIME) if inside.any() else True
            if good and good_before:
                return float(start - SLICE_SECONDS - self.overload_ends)
            good_before = good
        return float("inf")


def run(effort: Effort) -> None:
    """Measure each server's capacity, overload it, and see what it does.

    Args:
        effort: How often; a turn of ``seconds`` measures the capacity.
    """
    directory = wide_directory()
    sides = [
        replace(headrace("grpc", directory, "headrace, gRPC"), directory=directory),
        grpcio(directory=directory),
        grpcio(limit=IN_FLIGHT, directory=directory),
        replace(headrace("json", directory, "headrace, REST"), directory=directory),
        fastapi("sync", directory=directory),
    ]
    with contenders(sides, ROWS) as started:
        for contender in started.values():
            send(_load(contender, in_flight=IN_FLIGHT, seconds=1.0))
        measures = {name: lambda one=one: _round(one, effort.seconds) for name, one in started.items()}
        measured: dict[str, list[Round]] = interleaved(measures, effort.rounds)
    print_lines([_HEAD, *(_line(name, rounds) for name, rounds in measured.items())])
    _verdicts(sides, measured)
    if effort.plot:
        _plot(measured)
        print(f"plot: {PLOT}")


def _load(contender: Contender, **how: object) -> Load:
    wire = contender.side.wire
    is_grpc = wire == "grpc"
    port = contender.server.ports["grpc" if is_grpc else "http"]
    path = METHOD if is_grpc else JSON_PATH
    return Load("grpc" if is_grpc else "json", port, path, contender.bodies, **how)  # type: ignore[arg-type]


def _round(contender: Contender, seconds: float) -> Round:
    before = _capacity(send(_load(contender, in_flight=IN_FLIGHT, seconds=seconds / 2)))
    moments, overload_ends = _moments(before)
    seen = send(_load(contender, moments=moments, deadline_seconds=DEADLINE_SECONDS))
    # Before and after: machines that are shared change their speed within seconds, and a server that still
    # computes what nobody waits for is slower than it can be. So what it can do is the better of the two.
    after = _capacity(send(_load(contender, in_flight=IN_FLIGHT, seconds=seconds / 2)))
    _let_finish(contender)
    return Round(max(before, after), seen, overload_ends)


def _let_finish(contender: Contender) -> None:
    """Wait until a server has nothing more to do: what it still computes takes the core from the next one."""
    until = time.monotonic() + LONGEST_BACKLOG_SECONDS
    while time.monotonic() < until:
        before = contender.server.counters().cpu_seconds
        time.sleep(SLICE_SECONDS)
        if contender.server.counters().cpu_seconds - before < IDLE_SHARE * SLICE_SECONDS:
            return
    print(f"  {contender.side.name} was still busy after {LONGEST_BACKLOG_SECONDS:g} s")


def _capacity(seen: Seen) -> float:
    """Answers a second, but for the first moments in which there are none yet."""
    ended = np.sort(seen.ended[seen.how == Ended.ANSWERED])
    begun = ended[len(ended) // 5 :]
    return float((len(begun) - 1) / (begun[-1] - begun[0])) if len(begun) > 1 else 0.0


def _moments(capacity: float) -> tuple[list[float], float]:
    """When requests are due, at random: too many at first, then few."""
    random = np.random.default_rng(round(capacity))

    def at(per_second: float, seconds: float) -> npt.NDArray[np.float64]:
        return np.cumsum(random.exponential(1 / per_second, round(per_second * seconds)))

    first = at(TIMES_CAPACITY * capacity, OVERLOAD_SECONDS)
    then = first[-1] + at(AFTER_SHARE * capacity, AFTER_SECONDS)
    return [*first.tolist(), *then.tolist()], float(first[-1])


_HEAD = (
    "", "capacity/s", "in time, of capacity", "answer p50 ms", "p99", "refused", "refusal p50 ms", "p99",
    "given up", "recovery s", "load busy", "load late ms",
)  # fmt: skip


def _line(name: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    def milliseconds(how: Ended, percentile: float) -> str:
        spent = middle([one.spent(how, percentile) for one in rounds]) * 1e3
        return "-" if np.isnan(spent) else f"{spent:.1f}"

    late = [float(np.percentile(one.seen.sent - one.seen.due, 99)) for one in rounds]
    return (
        name,
        f"{middle([one.capacity for one in rounds]):,.0f}",
        spread([one.goodput for one in rounds]),
        milliseconds(Ended.ANSWERED, 50),
        milliseconds(Ended.ANSWERED, 99),
        f"{middle([one.part(Ended.REFUSED) for one in rounds]):.0%}",
        milliseconds(Ended.REFUSED, 50),
        milliseconds(Ended.REFUSED, 99),
        f"{middle([one.part(Ended.GIVEN_UP, Ended.TOLD_LATE, Ended.FAILED) for one in rounds]):.0%}",
        f"{middle([one.recovery for one in rounds]):.1f}",
        f"{middle([one.seen.busy for one in rounds]):.0%}",
        f"{middle(late) * 1e3:.1f}",
    )


def _verdicts(sides: Sequence[Side], measured: dict[str, list[Round]]) -> None:
    for side in sides:
        if not side.name.startswith("headrace"):
            continue
        rounds = measured[side.name]
        goodput = [one.goodput for one in rounds]
        refusal = middle([one.spent(Ended.REFUSED, 50) for one in rounds])
        recovery = middle([one.recovery for one in rounds])
        verdict(
            f"{side.name}: answers in time ≥ {GOODPUT_TARGET} of capacity at {TIMES_CAPACITY:g} × it",
            middle(goodput) >= GOODPUT_TARGET,
            spread(goodput),
        )
        verdict(
            f"{side.name}: refusals within {REFUSAL_TARGET_SECONDS * 1e3:g} ms by median",
            refusal < REFUSAL_TARGET_SECONDS,
            f"{refusal * 1e3:.1f} ms",
        )
        verdict(
            f"{side.name}: recovery within {RECOVERY_TARGET_SECONDS:g} s",
            recovery <= RECOVERY_TARGET_SECONDS,
            f"{recovery:.1f} s",
        )


def _plot(measured: dict[str, list[Round]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure((8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, rounds in measured.items():
        last = rounds[-1]
        starts = np.arange(0.0, last.seen.due[-1] - SLICE_SECONDS, SLICE_SECONDS)
        inside = [(last.seen.due >= start) & (last.seen.due < start + SLICE_SECONDS) for start in starts]
        goodput = [(last.in_time & part).sum() / SLICE_SECONDS / last.capacity for part in inside]
        (line,) = above.plot(starts, goodput, label=name)
        refused = [last.seen.spent[part & (last.seen.how == Ended.REFUSED)] for part in inside]
        medians = [float(np.median(spent)) * 1e3 if len(spent) else np.nan for spent in refused]
        below.plot(starts, medians, color=line.get_color())
    ends = measured[next(iter(measured))][-1].overload_ends
    for axes in (above, below):
        axes.axvspan(0, ends, color="#f2e6d8", zorder=0)
    above.axhline(GOODPUT_TARGET, color="black", linestyle=":", linewidth=1)
    above.set_ylabel("answers in time, of capacity")
    below.axhline(REFUSAL_TARGET_SECONDS * 1e3, color="black", linestyle=":", linewidth=1)
    below.set_yscale("log")
    below.set_ylabel("refusals, median ms")
    below.set_xlabel(f"seconds; shaded: {TIMES_CAPACITY:g} times the capacity, then half of it")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    FigureCanvasAgg(figure).print_figure(PLOT, dpi=120)
