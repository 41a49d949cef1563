"""A run's numbers for Prometheus, at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.progress import Pace, Progress
from headrace.training.scoring.windows import Window


@dataclass(frozen=True, slots=True)
class TrainingMetric:
    """What a metric is called and means.

    Attributes:
        name: Its name, without ``headrace_training_`` before and Prometheus' suffixes behind.
        help: What it counts or measures, and its unit.
        counter: Whether it only grows.
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
    TrainingMetric("idle_share", "How much of the last window's time the learner waited for rows, 0 to 1."),
    TrainingMetric("logloss", "The last window's mean loss, in nats."),
    TrainingMetric("auc", "The last window's area under the ROC curve."),
    TrainingMetric("calibration", "The last window's mean prediction divided by its mean label."),
    TrainingMetric("normalized_entropy", "The last window's logloss divided by its click rate's entropy."),
    TrainingMetric("optimal_logloss", "The last window's logloss of the generator's own probabilities."),
    TrainingMetric("jumped", "1 if the last window is far worse than those before it."),
    TrainingMetric("tired", "1 if the last windows are worse than windows were once."),
    TrainingMetric("pending_rows", "Rows that wait for their labels."),
    TrainingMetric("version", "The number of the version published last."),
    TrainingMetric(
        "publication_age_seconds", "Time since a version was published, or since the run began: alert on it."
    ),
)
"""All metrics of a run; those that have no value yet are left out of a scrape."""


class Telemetry:
    """Keeps the newest numbers of a run, and answers scrapes with them in threads of its own."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, publishes: bool = False) -> None:
        """Start with nothing.

        Args:
            now: What tells the time, in seconds.
            publishes: Whether versions are to come: then the time until the first one is told, too, so that a
                run that never publishes is heard of.
        """
        self._now = now
        self._due_since = now() if publishes else None
        self._progress = Progress()
        self._window: dict[str, float | None] = {}
        self._newest: tuple[int, float] | None = None
        self._failures = 0

    def moved(self, progress: Progress) -> None:
        """Keep it."""
        self._progress = progress

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Keep its scores."""
        names = ("logloss", "auc", "calibration", "normalized_entropy", "optimal_logloss")
        trends = {name: float(window.trend == name) for name in ("jumped", "tired")}
        self._window = {name: getattr(window.score, name) for name in names} | trends | pace._asdict()

    def published(self, publication: Publication, rows: int) -> None:
        """Keep when that was."""
        self._newest = publication.version, self._now()

    def failed(self, what: str) -> None:
        """Count it."""
        self._failures += 1

    def values(self) -> dict[str, float]:
        """The metrics that have a value now, by name."""
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
        """The metrics, as Prometheus' client wants them."""
        values = self.values()
        for metric in METRICS:
            if metric.name in values:
                family = CounterMetricFamily if metric.counter else GaugeMetricFamily
                yield family(f"headrace_training_{metric.name}", metric.help, value=values[metric.name])
