"""What a metric is, without anything that it is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric is called and means.

    Attributes:
        name: Its name, without the suffixes that Prometheus' text format adds.
        kind: What Prometheus makes of it.
        help: What it counts or measures, and its unit.
        labels: By what it is divided.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("model", "version")
