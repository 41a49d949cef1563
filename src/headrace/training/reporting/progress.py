"""How far a run is, how fast it goes, and who wants to know."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.training.releasing.publishing import Publication
from headrace.training.scoring.windows import Window


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        rows: The rows taken from the stream, from its start.
        seconds: How long that took; earlier parts of a resumed run included.
        idle_seconds: How much of that the learner waited for rows.
        stream_bytes: The bytes read.
        pending_rows: The rows that wait for their labels; None if labels come with the rows.
        versions: The versions published.
    """

    rows: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0
    stream_bytes: int = 0
    pending_rows: int | None = None
    versions: tuple[int, ...] = ()


class Pace(NamedTuple):
    """How fast rows were learnt from between two points of a run.

    Attributes:
        rows_per_second: The rows divided by the time.
        idle_share: How much of the time the learner waited for rows, 0 to 1.
    """

    rows_per_second: float
    idle_share: float

    @classmethod
    def between(cls, before: Progress, now: Progress) -> Pace:
        """The pace from one point to another."""
        seconds = max(now.seconds - before.seconds, 1e-9)
        idle = min(max((now.idle_seconds - before.idle_seconds) / seconds, 0.0), 1.0)
        return cls((now.rows - before.rows) / seconds, idle)


class Observer(Protocol):
    """Whoever wants to know what happens in a run. Called by the learner's thread; must be quick."""

    def moved(self, progress: Progress) -> None:
        """Rows have been learnt from."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """A window is over."""

    def published(self, publication: Publication, rows: int) -> None:
        """A version of the model after so many rows is there."""

    def failed(self, what: str) -> None:
        """Something went wrong that does not end the run."""
