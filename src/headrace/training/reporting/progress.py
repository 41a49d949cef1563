"""Progress and pace of a run, and the interface of its observers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.evaluation.windows import Window
from headrace.training.releasing.publishing import Publication


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        rows: Rows taken from the stream, from its start.
        seconds: Time taken, including earlier parts of a resumed run.
        idle_seconds: Part of that time in which the learner waited for rows.
        stream_bytes: Bytes read.
        pending_rows: Rows that wait for their labels; None if labels come with the rows.
        versions: Numbers of the versions published.
    """

    rows: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0
    stream_bytes: int = 0
    pending_rows: int | None = None
    versions: tuple[int, ...] = ()


class Pace(NamedTuple):
    """Pace between two points of a run.

    Attributes:
        rows_per_second: Rows taken from the stream per second.
        idle_share: Share of the time in which the learner waited for rows, 0 to 1.
    """

    rows_per_second: float
    idle_share: float

    @classmethod
    def between(cls, before: Progress, now: Progress) -> Pace:
        """Return the pace from one point to another."""
        seconds = max(now.seconds - before.seconds, 1e-9)
        idle = min(max((now.idle_seconds - before.idle_seconds) / seconds, 0.0), 1.0)
        return cls((now.rows - before.rows) / seconds, idle)


class Observer(Protocol):
    """Interface of objects that are notified of a run's events, in the learner's thread; must be quick."""

    def moved(self, progress: Progress) -> None:
        """Handle progress, after each block."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Handle a closed window."""

    def published(self, publication: Publication, rows: int) -> None:
        """Handle a published version, taken from the model after ``rows`` rows of the stream."""

    def failed(self, what: str) -> None:
        """Handle a failure that does not end the run."""
