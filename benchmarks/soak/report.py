"""What a soak comes to: its tables, its plot, and whether all was well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.rounds import print_lines
from benchmarks.soak.latency import Span, latency_trend, p99s
from benchmarks.soak.ledger import DEFECTS, Outcome, counted
from benchmarks.soak.memory import MEASURES, Trend, trends
from benchmarks.soak.plan import DEADLY, HARSH, SERVERS
from benchmarks.soak.running import Course

_SHOWN = 30
_WARM_UP_SECONDS = 40.0
_LEAST_WATCHED_SECONDS = 60.0
Table = list[tuple[str, ...]]


def judged_trends(course: Course) -> list[Trend]:
    """The trends of the processes that lived through most of the second half, and of each server's p99.

    They end with the faults: when nothing more is done, callers are answered faster, and all versions are
    loaded, with their threads.
    """
    since, until = _judged(course)
    samples = [one for one in course.samples if one.at_seconds <= until]
    warm_up = max(_WARM_UP_SECONDS, 0.1 * course.seconds)
    found = trends(samples, since, warm_up, max(_LEAST_WATCHED_SECONDS, 0.2 * course.seconds))
    for server in SERVERS:
        faults = [
            (one.began - course.began, one.ended - course.began)
            for one in course.episodes
            if one.server == server
        ]
        points = p99s(course.ledger.ended, server)
        p99 = latency_trend(server, points, (since, until), faults)
        found += [p99] if p99 else []
    return found


def _judged(course: Course) -> Span:
    return DEADLY.last * course.seconds, HARSH.last * course.seconds


def is_well(course: Course) -> bool:
    """Whether nothing was wrong."""
    return not course.defects and all(trend.is_flat for trend in judged_trends(course))


def request_table(course: Course) -> Table:
    """What became of the requests, a line for each server and protocol."""
    head = ("asked", "sent", *(outcome.value for outcome in Outcome))
    lines: Table = [head]
    total: Counter[Outcome] = Counter()
    for (server, protocol), outcomes in counted(course.ledger).items():
        total += outcomes
        cells = (f"{outcomes[one]:,}" for one in Outcome)
        lines.append((f"{server}, {protocol}", f"{course.ledger.sent[server, protocol]:,}", *cells))
    cells = (f"{total[one]:,}" for one in Outcome)
    lines.append(("all", f"{course.ledger.sent.total():,}", *cells))
    # A column in which nothing is is left out, but for those which nothing may be in.
    kept = [
        column
        for column, name in enumerate(head)
        if column < 2 or Outcome(name) in DEFECTS or lines[-1][column] != "0"  # the first two
    ]
    return [tuple(line[column] for column in kept) for line in lines]


def fault_table(course: Course) -> Table:
    """What was done, and what it cost: a line for each kind."""
    costs: dict[str, Counter[Outcome]] = {}
    for one in course.ledger.ended:
        if one.outcome in (Outcome.REFUSED, Outcome.LOST, Outcome.UNSENT):
            costs.setdefault(one.note.partition(":")[0], Counter())[one.outcome] += 1
    lines: Table = [("what was done", "times", "failed with it", "refused", "not sent (server down)")]
    for kind, times in sorted((course.done + Counter(one.kind for one in course.episodes)).items()):
        cost = costs.get(kind, Counter())
        many = (cost[Outcome.LOST], cost[Outcome.REFUSED], cost[Outcome.UNSENT])
        lines.append((kind, str(times), *(f"{one:,}" for one in many)))
    return lines


def trend_table(found: Sequence[Trend]) -> Table:
    """How memory, descriptors, threads and p99 went."""
    lines: Table = [("in the second half", "seconds", "median", "an hour", "grown", "allowed", "flat")]
    for trend in found:
        unit = f" {trend.unit}" if trend.unit else ""
        lines.append(
            (
                trend.what,
                f"{trend.over_seconds:.0f}",
                f"{trend.middle:.1f}{unit}",
                f"{trend.slope * 3600:+.1f}{unit}",
                f"{trend.growth:+.1f}{unit}",
                f"{trend.allowed:.1f}{unit}",
                "yes" if trend.is_flat else "NO",
            )
        )
    return lines


def markdown(lines: Table) -> str:
    """A table as Markdown."""
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def tell(course: Course) -> None:
    """Print everything."""
    found = judged_trends(course)
    took = [one.took_seconds for one in course.ledger.ended if one.outcome is Outcome.RIGHT] or [0.0]
    p50, p99 = np.percentile(took, [50, 99]) * 1e3
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    print(f"\nsoak of {course.seconds / 60:g} minutes, seed {course.seed}, {now}")
    print(f"answers: p50 {p50:.1f} ms, p99 {p99:.1f} ms, faults included, clients beside the servers")
    print(f"the soak itself once stood still for {course.held_up_seconds:.2f} s")
    if course.settled_seconds:
        print(
            f"changes of versions: {len(course.settled_seconds)} arrived, median "
            f"{np.median(course.settled_seconds):.2f} s, at most {max(course.settled_seconds):.2f} s"
        )
    for lines in (request_table(course), fault_table(course), trend_table(found)):
        print()
        print_lines(lines)
    if not found:
        print("  no process lived long enough to be judged: make the soak longer")
    for line in course.skipped:
        print(f"skipped: {line}")
    for line in course.defects[:_SHOWN]:
        print(f"DEFECT: {line}")
    if len(course.defects) > _SHOWN:
        print(f"and {len(course.defects) - _SHOWN} more")
    print("\nall is well" if is_well(course) else "\nNOT well", flush=True)


def write_report(course: Course, file: Path) -> None:
    """Write the tables as Markdown."""
    tables = (request_table(course), fault_table(course), trend_table(judged_trends(course)))
    file.write_text("\n\n".join(markdown(lines) for lines in tables) + "\n", "utf-8")


def plot(course: Course, file: Path) -> None:
    """Draw memory, descriptors, threads and p99 over time, with what was done to the servers.

    Raises:
        ImportError: matplotlib is missing: the extra ``plot``.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  # heavy, and only if it is asked for

    figure = Figure(figsize=(12, 11), layout="constrained")
    *processes, latency = figure.subplots(len(MEASURES) + 1, 1, sharex=True, height_ratios=(3, 2, 2, 3))
    for server in SERVERS:
        for measure, axes in zip(MEASURES, processes, strict=True):
            by_time: dict[float, float] = {}
            for one in course.samples:
                if one.server == server:
                    by_time[one.at_seconds] = by_time.get(one.at_seconds, 0.0) + measure.of(one)
            axes.plot(list(by_time), list(by_time.values()), label=server, linewidth=1)
            axes.set_ylabel(f"{measure.name}{', MiB' if measure.unit else ''}")
        points = p99s(course.ledger.ended, server)
        latency.plot([at for at, _ in points], [p99 for _, p99 in points], label=server, linewidth=1)
    latency.set_yscale("log")
    latency.set_ylabel("p99 of right answers, ms")
    latency.set_xlabel("seconds; grey: a fault; between the dotted lines: judged")
    for axes in (*processes, latency):
        for at in _judged(course):
            axes.axvline(at, color="black", linestyle=":", linewidth=1)
        for episode in course.episodes:
            began, ended = episode.began - course.began, episode.ended - course.began
            axes.axvspan(began, min(ended, course.seconds), alpha=0.12, color="grey", linewidth=0)
    for axes in processes:
        axes.set_ylim(bottom=0)
    processes[0].legend(loc="lower right")
    figure.savefig(file, dpi=90)
