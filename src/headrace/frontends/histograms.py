"""What a scrape says of latencies: classic buckets for all scrapers, native ones in protobuf.

The classic buckets of a model are as fine as those in which latencies are counted, so that a quantile is
wrong by less than 9 %. Those of its versions, which are there to be compared, are one for each doubling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.batching.latencies import BOUNDS_SECONDS, FIRST_INDEX, PER_OCTAVE, SCHEMA, Latencies
from headrace.frontends.wire import protos

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LEAST_SECONDS, _MOST_SECONDS = 2.0**-16, 2.0**4
"""The classic buckets: 15 µs to 16 s. What is faster or slower still is in the first and the last."""


def classic_bounds(per_octave: int) -> list[tuple[int, str]]:
    """The classic buckets: how many of the counted ones each holds, and its ``le``.

    Args:
        per_octave: How many buckets for each doubling: 1, 2, 4 or 8.
    """
    step = PER_OCTAVE // per_octave
    return [
        (index + 1, f"{bound:.6g}")
        for index, bound in enumerate(BOUNDS_SECONDS)
        if (index + FIRST_INDEX) % step == 0 and _LEAST_SECONDS <= bound <= _MOST_SECONDS
    ]


def _places(per_octave: int) -> tuple[list[int], list[str]]:
    bounds = classic_bounds(per_octave)
    return [*(count - 1 for count, _ in bounds), len(BOUNDS_SECONDS)], [*(le for _, le in bounds), "+Inf"]


_PLACES_OF_MODELS, _LE_OF_MODELS = _places(PER_OCTAVE)
_PLACES_OF_VERSIONS, _LE_OF_VERSIONS = _places(1)


@dataclass(frozen=True, slots=True)
class LatencySeries:
    """One series of a family of latencies.

    Attributes:
        labels: Its labels.
        counts: By ``BOUNDS_SECONDS``, with one more entry for what is above all.
        total_seconds: The sum of all latencies.
        fine: Whether its classic buckets are as fine as the counts.
    """

    labels: Mapping[str, str]
    counts: Sequence[int]
    total_seconds: float
    fine: bool

    @property
    def bounds(self) -> Sequence[str]:
        """The ``le`` of each classic bucket, the last ``+Inf``."""
        return _LE_OF_MODELS if self.fine else _LE_OF_VERSIONS

    def below(self) -> list[int]:
        """How many latencies each classic bucket has: all up to its bound."""
        below = list(accumulate(self.counts))
        return [below[place] for place in (_PLACES_OF_MODELS if self.fine else _PLACES_OF_VERSIONS)]


def add_latencies(
    family: Family, labels: Mapping[str, str], latencies: Latencies, total_seconds: float, *, fine: bool
) -> None:
    """Add a series to a family of histograms; it is read with ``latency_series``, and is none of its samples.

    A sample is an object, and a model has as many as a hundred buckets.

    Args:
        family: From ``metrics.family``.
        labels: The series' labels, in the family's order.
        latencies: The counts.
        total_seconds: The sum of all latencies.
        fine: Whether the classic buckets are as fine as the counts.
    """
    if not hasattr(family, _SERIES):
        setattr(family, _SERIES, [])
    getattr(family, _SERIES).append(LatencySeries(labels, latencies.by_bound(), total_seconds, fine))


_SERIES = "headrace_latency_series"


def latency_series(family: Family) -> list[LatencySeries]:
    """The series of a family that ``add_latencies`` has added; empty for others."""
    found: list[LatencySeries] = getattr(family, _SERIES, [])
    return found


def fill_native(message: protos.Message, series: LatencySeries) -> None:
    """Write a native histogram into a ``Histogram`` message.

    What is at or below the first bound is its zero bucket; what is above the last one has one bucket more.
    """
    message.sample_count = sum(series.counts)
    message.sample_sum = series.total_seconds
    message.schema = SCHEMA
    message.zero_threshold = BOUNDS_SECONDS[0]
    message.zero_count = series.counts[0]
    before, end = 0, 0
    for place, count in enumerate(series.counts[1:], FIRST_INDEX + 1):
        if not count:
            continue
        if message.positive_span and place == end:
            message.positive_span[-1].length += 1
        else:
            message.positive_span.add(offset=place - end, length=1)
        end = place + 1
        message.positive_delta.append(count - before)
        before = count
