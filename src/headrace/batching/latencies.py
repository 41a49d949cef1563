"""The buckets in which latencies are counted: eight for each doubling, from 8 µs to 64 s.

They are the buckets of Prometheus' native histograms of schema 3. A latency lies within 9 % of either end of
its bucket, so a quantile that is read from the counts is wrong by no more than that, whatever the
distribution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SCHEMA = 3
"""Prometheus' number for buckets that end at powers of 2 ** (1 / 8)."""

PER_OCTAVE = 2**SCHEMA
"""Buckets for each doubling."""

FIRST_INDEX, _LAST_INDEX = -17 * PER_OCTAVE, 6 * PER_OCTAVE

BOUNDS_SECONDS: tuple[float, ...] = tuple(
    2.0 ** (index / PER_OCTAVE) for index in range(FIRST_INDEX, _LAST_INDEX + 1)
)
"""Where buckets end, inclusive. Prometheus calls the bucket that ends at the first one ``FIRST_INDEX``."""


class Latencies:
    """Counts of one version's latencies. Belongs to the thread that its Batcher belongs to; others may read.

    An objective is one bound more. So how many requests kept it is counted exactly, and costs none of them
    anything.

    Attributes:
        bounds: Where buckets end, the objective among them if there is one.
        counts: Latencies in each bucket; the last entry counts those above all bounds.
    """

    __slots__ = ("_kept", "bounds", "counts")

    def __init__(self, objective_seconds: float = 0.0) -> None:
        """Start at nothing.

        Args:
            objective_seconds: The latency objective; 0 for none.
        """
        self.bounds = BOUNDS_SECONDS
        self._kept = -1
        if objective_seconds:
            self.bounds = tuple(sorted({*BOUNDS_SECONDS, objective_seconds}))
            self._kept = self.bounds.index(objective_seconds) + 1
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count one latency."""
        self.counts[bisect_left(self.bounds, seconds)] += 1

    def add_arrivals(self, arrivals: list[float], now: float) -> None:
        """Count the latencies of requests that are answered together.

        Args:
            arrivals: When they came; is sorted.
            now: When they were answered.
        """
        arrivals.sort()
        bounds, counts = self.bounds, self.counts
        fastest, slowest = bisect_left(bounds, now - arrivals[-1]), bisect_left(bounds, now - arrivals[0])
        if slowest - fastest < len(arrivals):  # by bucket: those of a batch often lie in a few
            counted = 0
            for bucket in range(slowest, fastest, -1):
                slower = bisect_left(arrivals, now - bounds[bucket - 1])
                counts[bucket] += slower - counted
                counted = slower
            counts[fastest] += len(arrivals) - counted
        else:
            for arrived in arrivals:
                counts[bisect_left(bounds, now - arrived)] += 1

    def add_all(self, other: Latencies) -> None:
        """Count what another has counted, whatever its objective; only where this one has none."""
        if any(other.counts):
            self.counts = [mine + its for mine, its in zip(self.counts, other.by_bound(), strict=True)]

    @property
    def within_objective(self) -> int:
        """How many kept the objective; 0 without one."""
        return sum(self.counts[: max(self._kept, 0)])

    def by_bound(self) -> list[int]:
        """Counts by ``BOUNDS_SECONDS``, with one more entry for those above all."""
        counts = self.counts.copy()
        if len(self.bounds) > len(BOUNDS_SECONDS):  # what the objective has cut in two
            below = counts.pop(self._kept - 1)
            counts[self._kept - 1] += below
        return counts


def quantile(counts: Sequence[float], share: float) -> float:
    """The latency that a share of requests does not exceed, as Prometheus would estimate it.

    Args:
        counts: By ``BOUNDS_SECONDS``, with one more entry: of ``Latencies.by_bound``, or differences of such.
        share: Such as 0.99.

    Returns:
        Seconds; NaN where nothing was counted.
    """
    total = sum(counts)
    if total <= 0:
        return float("nan")
    rank, below = share * total, 0.0
    for index, count in enumerate(counts):
        if count > 0 and below + count >= rank:
            if index == len(BOUNDS_SECONDS):
                break
            start = BOUNDS_SECONDS[index - 1] if index else 0.0
            return start + (BOUNDS_SECONDS[index] - start) * (rank - below) / count
        below += count
    return BOUNDS_SECONDS[-1]
