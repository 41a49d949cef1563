"""The declaration of a metric, independent of its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """The name and meaning of a metric.

    Attributes:
        name: Name without the suffixes that Prometheus' text format adds.
        kind: Prometheus' type.
        help: What it counts or measures, and the unit.
        labels: Names of its labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("model", "version")
