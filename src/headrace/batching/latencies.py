"""Latency histograms with eight buckets for each doubling, from 8 µs to 64 s.

The buckets are those of Prometheus native histograms with schema 3. A latency lies within 9 % of either end
of its bucket. The error of a quantile read from the counts is therefore at most 9 %, for any distribution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SCHEMA = 3
"""Prometheus schema number of buckets whose upper bounds are powers of 2 ** (1 / 8)."""

PER_OCTAVE = 2**SCHEMA
"""Number of buckets for each doubling."""

FIRST_INDEX, _LAST_INDEX = -17 * PER_OCTAVE, 6 * PER_OCTAVE

BOUNDS_SECONDS: tuple[float, ...] = tuple(
    2.0 ** (index / PER_OCTAVE) for index in range(FIRST_INDEX, _LAST_INDEX + 1)
)
"""Inclusive upper bounds of the buckets. The first one's Prometheus bucket index is ``FIRST_INDEX``."""


class Latencies:
    """Latency histogram of one version. Only the Batcher's serving thread writes it; other threads may read.

    A latency objective is an additional bucket bound. The number of requests within the objective is
    therefore exact, at no cost per request.

    Attributes:
        bounds: Inclusive upper bounds of the buckets, including the objective if there is one.
        counts: Number of latencies in each bucket; the last entry counts those above all bounds.
    """

    __slots__ = ("_kept", "bounds", "counts")

    def __init__(self, objective_seconds: float = 0.0) -> None:
        """Create an empty histogram.

        Args:
            objective_seconds: The latency objective in seconds; 0 for none.
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
            arrivals: Arrival times on the monotonic clock. The list is sorted in place.
            now: Time of the answer on the monotonic clock.
        """
        arrivals.sort()
        bounds, counts = self.bounds, self.counts
        fastest, slowest = bisect_left(bounds, now - arrivals[-1]), bisect_left(bounds, now - arrivals[0])
        if slowest - fastest < len(arrivals):  # count by bucket: a batch's latencies often share a few
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
        """Add the counts of another histogram with any objective; this one must have no objective."""
        if any(other.counts):
            self.counts = [mine + its for mine, its in zip(self.counts, other.by_bound(), strict=True)]

    @property
    def within_objective(self) -> int:
        """Number of requests answered within the objective; 0 without an objective."""
        return sum(self.counts[: max(self._kept, 0)])

    def by_bound(self) -> list[int]:
        """Return the counts for ``BOUNDS_SECONDS``, with a last entry for latencies above all bounds."""
        counts = self.counts.copy()
        if len(self.bounds) > len(BOUNDS_SECONDS):  # merge the bucket that the objective split
            below = counts.pop(self._kept - 1)
            counts[self._kept - 1] += below
        return counts


def quantile(counts: Sequence[float], share: float) -> float:
    """Estimate a quantile of the latencies in the way Prometheus does.

    Args:
        counts: Counts as returned by ``Latencies.by_bound``, or a difference of two such sequences.
        share: The quantile, for example 0.99.

    Returns:
        The quantile in seconds; NaN if the counts are all zero.
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
