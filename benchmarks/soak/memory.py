"""Memory and descriptors of the servers' processes over time, and whether they grow."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
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
    """

    at_seconds: float
    server: str
    role: str
    process: int
    pss_bytes: int
    descriptors: int


@dataclass(frozen=True)
class Trend:
    """How something went over a time.

    Attributes:
        what: Of which process, and what.
        over_seconds: How long it was looked at.
        middle: The median.
        slope: How much it grows in a second, by Theil and Sen.
        allowed: How much it may have grown in that time.
    """

    what: str
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
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        descriptors = sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return None
    pss = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Sample(at_seconds, server, role, process, pss * 1024, descriptors)


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
            memory = [one.pss_bytes / MIB for one in seen]
            descriptors = [float(one.descriptors) for one in seen]
            found.append(_trend(f"{name}, memory", seen, memory, 8.0, 0.05))
            found.append(_trend(f"{name}, descriptors", seen, descriptors, 4.0, 0.1))
    return found


def _trend(what: str, seen: Sequence[Sample], values: Sequence[float], least: float, share: float) -> Trend:
    over = seen[-1].at_seconds - seen[0].at_seconds
    middle = statistics.median(values)
    points = [(one.at_seconds, value) for one, value in zip(seen, values, strict=True)]
    return Trend(what, over, middle, slope(points), max(least, share * middle))
