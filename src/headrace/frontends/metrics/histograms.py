"""Latency histograms of a scrape: classic buckets for all scrapers, native ones in protobuf.

A model's classic buckets are as fine as the counted ones, so that a quantile is wrong by less than 9 %. The
series of its versions, meant for comparison, have one bucket for each doubling.
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
"""Range of the classic buckets: 15 µs to 16 s. The first and the last hold anything beyond it."""


def classic_bounds(per_octave: int) -> list[tuple[int, str]]:
    """Return, for each classic bucket, the number of counted buckets up to its bound, and its ``le``.

    Args:
        per_octave: Number of buckets for each doubling: 1, 2, 4 or 8.
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
    """One series of a family of latency histograms.

    Attributes:
        labels: The labels.
        counts: Counts by ``BOUNDS_SECONDS``, with one more entry for latencies above the last bound.
        total_seconds: Sum of all latencies.
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
        """Return the cumulative count of each classic bucket: all latencies up to its bound."""
        below = list(accumulate(self.counts))
        return [below[place] for place in (_PLACES_OF_MODELS if self.fine else _PLACES_OF_VERSIONS)]


def add_latencies(
    family: Family, labels: Mapping[str, str], latencies: Latencies, total_seconds: float, *, fine: bool
) -> None:
    """Add a series to a family of histograms; read it with ``latency_series``.

    It is not added as samples: each sample is an object, and a model has about 160 buckets.

    Args:
        family: A family from ``metrics.family``.
        labels: The labels, in the family's order.
        latencies: The counts.
        total_seconds: Sum of all latencies.
        fine: Whether the classic buckets are as fine as the counts.
    """
    if not hasattr(family, _SERIES):
        setattr(family, _SERIES, [])
    getattr(family, _SERIES).append(LatencySeries(labels, latencies.by_bound(), total_seconds, fine))


_SERIES = "headrace_latency_series"


def latency_series(family: Family) -> list[LatencySeries]:
    """Return the series that ``add_latencies`` added to a family; empty if there are none."""
    found: list[LatencySeries] = getattr(family, _SERIES, [])
    return found


def fill_native(message: protos.Message, series: LatencySeries) -> None:
    """Write a series into a ``Histogram`` message as a native histogram.

    Latencies up to the first bound are its zero bucket; those above the last bound have one more bucket.
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
