"""Memory, descriptors and threads of the servers' processes over time, and whether they grow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

MIB = 1 << 20
_MOST_PAIRS_OF = 120
"""More samples than this are thinned before all pairs of them are looked at."""


@dataclass(frozen=True)
class Sample:
    """One process at one moment.

    Attributes:
        at_seconds: When, since the beginning.
        server: Whose it is.
        role: What it is there.
        process: Its number.
        pss_bytes: Its memory, with its share of what is shared.
        descriptors: How many it has open.
        threads: How many it has.
    """

    at_seconds: float
    server: str
    role: str
    process: int
    pss_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Measure:
    """Something of a process that may not grow.

    Attributes:
        name: What it is.
        unit: What it is counted in; empty for plain numbers.
        of: Its value in a sample.
        least: It may grow by this much in any case.
        share: Or by this share of its median, if that is more.
    """

    name: str
    unit: str
    of: Callable[[Sample], float]
    least: float
    share: float


MEASURES = (
    Measure("memory", "MiB", lambda one: one.pss_bytes / MIB, 8.0, 0.05),
    Measure("descriptors", "", lambda one: one.descriptors, 4.0, 0.1),
    Measure("threads", "", lambda one: one.threads, 4.0, 0.1),
)
"""What is judged of each process. A few connections and loaders may be at work when a sample is taken."""


@dataclass(frozen=True)
class Trend:
    """How something went over a time.

    Attributes:
        what: Of which process, and what.
        unit: What it is counted in; empty for plain numbers.
        over_seconds: How long it was looked at.
        middle: The median.
        slope: How much it grows in a second, by Theil and Sen.
        allowed: How much it may have grown in that time.
    """

    what: str
    unit: str
    over_seconds: float
    middle: float
    slope: float
    allowed: float

    @property
    def growth(self) -> float:
        """How much it has grown."""
        return self.slope * self.over_seconds

    @property
    def is_flat(self) -> bool:
        """Whether it may have grown so much."""
        return self.growth <= self.allowed


def sample(at_seconds: float, server: str, process: int, role: str) -> Sample | None:
    """Look at a process; None if it has ended meanwhile."""
    place = Path(f"/proc/{process}")
    try:
        lines = (place / "smaps_rollup").read_text().splitlines()
        descriptors, threads = (sum(1 for _ in (place / name).iterdir()) for name in ("fd", "task"))
    except OSError:
        return None
    pss = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Sample(at_seconds, server, role, process, pss * 1024, descriptors, threads)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points: a few that stick out do not move it."""
    step = max(1, len(points) // _MOST_PAIRS_OF)
    pairs = combinations(points[::step], 2)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 > x1]
    return statistics.median(slopes) if slopes else 0.0


def trends(
    samples: Iterable[Sample], since_seconds: float, warm_up_seconds: float, at_least_seconds: float
) -> list[Trend]:
    """The trends of all processes that lived long enough.

    Args:
        samples: What was seen.
        since_seconds: Before this nothing is judged.
        warm_up_seconds: Nor in the first so many seconds of a process.
        at_least_seconds: How long a process must have been looked at after that.
    """
    by_process: dict[tuple[str, str, int], list[Sample]] = {}
    for one in samples:
        by_process.setdefault((one.server, one.role, one.process), []).append(one)
    found = []
    for (server, role, process), life in sorted(by_process.items()):
        begins = max(since_seconds, life[0].at_seconds + warm_up_seconds)
        seen = [one for one in life if one.at_seconds >= begins]
        if seen and seen[-1].at_seconds - seen[0].at_seconds >= at_least_seconds:
            name = f"{server}: {role} {process}" if role != server else f"{server} {process}"
            for measure in MEASURES:
                points = [(one.at_seconds, measure.of(one)) for one in seen]
                what = f"{name}, {measure.name}"
                found.append(fitted(what, measure.unit, points, measure.least, measure.share))
    return found


def fitted(what: str, unit: str, points: Sequence[tuple[float, float]], least: float, share: float) -> Trend:
    """The trend of points in time.

    Args:
        what: Of what.
        unit: What it is counted in.
        points: Seconds and values, in the order of time.
        least: It may grow by this much in any case.
        share: Or by this share of its median, if that is more.
    """
    middle = statistics.median(value for _, value in points)
    over = points[-1][0] - points[0][0]
    return Trend(what, unit, over, middle, slope(points), max(least, share * middle))
