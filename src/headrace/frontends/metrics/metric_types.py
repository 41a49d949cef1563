"""The declaration of a metric, and its family in a scrape; the latency histograms of families.

A model's classic buckets are as fine as the counted ones, so that a quantile is wrong by less than 9 %. The
series of its versions, meant for comparison, have one bucket for each doubling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from headrace.batching.latencies import BOUNDS_SECONDS, FIRST_INDEX, PER_OCTAVE, Latencies

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family


@dataclass(frozen=True, slots=True)
class Metric:
    """The name and meaning of a metric.

    Attributes:
        name: Name without the suffixes that Prometheus' text format adds.
        kind: Prometheus' type.
        help: Meaning of its values, and their unit.
        labels: Names of its labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("model", "version")


def family(metric: Metric) -> Any:  # prometheus_client's families share no typed add_metric
    """Return an empty family of a metric, of prometheus_client's class for its kind."""
    from prometheus_client import core  # noqa: PLC0415 - imported at the first scrape

    kinds = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


# --- latency histograms: classic buckets for all scrapers, native ones in protobuf ---

_LEAST_SECONDS, _MOST_SECONDS = 2.0**-16, 2.0**4
"""Range of the classic buckets: 15 µs to 16 s. The first and the last hold anything beyond it."""


def _classic_bounds(per_octave: int) -> list[tuple[int, str]]:
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
    bounds = _classic_bounds(per_octave)
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
        family: A family from ``family``.
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
