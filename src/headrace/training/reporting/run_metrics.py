"""Prometheus metrics of a run, at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.evaluation.progressive_validation import Window
from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.progress import Pace, Progress


@dataclass(frozen=True, slots=True)
class TrainingMetric:
    """Definition of a metric.

    Attributes:
        name: Name without the prefix ``headrace_training_`` and Prometheus' suffixes.
        help: Description and unit.
        counter: Whether it is a counter; otherwise it is a gauge.
    """

    name: str
    help: str
    counter: bool = False


METRICS = (
    TrainingMetric("rows", "Rows taken from the stream.", counter=True),
    TrainingMetric("stream_bytes", "Bytes read from the stream.", counter=True),
    TrainingMetric("versions", "Versions published.", counter=True),
    TrainingMetric("failures", "Versions and checkpoints that could not be written.", counter=True),
    TrainingMetric("rows_per_second", "Rows a second in the last window."),
    TrainingMetric(
        "idle_share", "The share of the last window's time that the learner waited for rows, 0 to 1."
    ),
    TrainingMetric("logloss", "The last window's mean loss, in nats."),
    TrainingMetric("auc", "The last window's area under the ROC curve."),
    TrainingMetric("calibration", "The last window's mean prediction divided by its mean label."),
    TrainingMetric("normalized_entropy", "The last window's logloss divided by its click rate's entropy."),
    TrainingMetric("optimal_logloss", "The last window's logloss of the generator's own probabilities."),
    TrainingMetric("jumped", "1 if the last window is far worse than those before it."),
    TrainingMetric("tired", "1 if the last windows are worse than the best earlier ones."),
    TrainingMetric("pending_rows", "Rows that wait for their labels."),
    TrainingMetric("version", "The number of the version published last."),
    TrainingMetric(
        "publication_age_seconds", "Time since a version was published, or since the run began: alert on it."
    ),
)
"""All metrics of a run; metrics without a value yet are omitted from a scrape."""


class Telemetry:
    """Collector of a run's current metrics. Scrapes read it from threads of their own."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, publishes: bool = False) -> None:
        """Start without values.

        Args:
            now: Clock, in seconds.
            publishes: Whether the run publishes versions. If so, the publication age is exported before the
                first version, too, so that an alert on it covers a run that never publishes.
        """
        self._now = now
        self._due_since = now() if publishes else None
        self._progress = Progress()
        self._window: dict[str, float | None] = {}
        self._newest: tuple[int, float] | None = None
        self._failures = 0

    def moved(self, progress: Progress) -> None:
        """Record the progress."""
        self._progress = progress

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Record the window's scores, trend and pace."""
        names = ("logloss", "auc", "calibration", "normalized_entropy", "optimal_logloss")
        trends = {name: float(window.trend == name) for name in ("jumped", "tired")}
        self._window = {name: getattr(window.score, name) for name in names} | trends | pace._asdict()

    def published(self, publication: Publication, rows: int) -> None:
        """Record the version and the time."""
        self._newest = publication.version, self._now()

    def failed(self, what: str) -> None:
        """Count the failure."""
        self._failures += 1

    def values(self) -> dict[str, float]:
        """Return the current values by metric; metrics without a value yet are left out."""
        progress = self._progress
        found: dict[str, float | None] = {
            "rows": progress.rows,
            "stream_bytes": progress.stream_bytes,
            "versions": len(progress.versions),
            "failures": self._failures,
            "pending_rows": progress.pending_rows,
            **self._window,
        }
        if self._newest is not None:
            version, moment = self._newest
            found |= {"version": version, "publication_age_seconds": self._now() - moment}
        elif self._due_since is not None:
            found["publication_age_seconds"] = self._now() - self._due_since
        return {name: value for name, value in found.items() if value is not None}

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as families of the Prometheus client."""
        values = self.values()
        for metric in METRICS:
            if metric.name in values:
                family = CounterMetricFamily if metric.counter else GaugeMetricFamily
                yield family(f"headrace_training_{metric.name}", metric.help, value=values[metric.name])
