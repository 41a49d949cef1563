"""Schedule of publications and checkpoints: pure decisions from the progress of a run."""

from __future__ import annotations

from typing import NamedTuple


class Every(NamedTuple):
    """Interval of a recurring action.

    Attributes:
        rows: Interval in rows: due when the stream's rows pass a multiple of it; 0 for never.
        seconds: Interval in seconds since the last time; 0 for never.
    """

    rows: int = 0
    seconds: float = 0.0


NEVER = Every()


class Mark(NamedTuple):
    """A point in a run.

    Attributes:
        rows: Rows taken from the stream.
        seconds: Time since the run started, including earlier parts of a resumed run.
    """

    rows: int = 0
    seconds: float = 0.0


def is_due(every: Every, last: Mark, now: Mark) -> bool:
    """Return whether a recurring action is due now.

    Multiples of rows count from the stream's first row, so that a resumed run acts at the same rows as an
    uninterrupted one. Without new rows nothing is due.

    Args:
        every: Interval of the action.
        last: Point at which the action was last taken.
        now: Current point of the run.
    """
    passed = every.rows > 0 and now.rows // every.rows > last.rows // every.rows
    return passed or seconds_until(every, last, now) == 0.0


def seconds_until(every: Every, last: Mark, now: Mark) -> float | None:
    """Return the seconds until a recurring action is due if no more rows arrive; None for never.

    Args:
        every: Interval of the action.
        last: Point at which the action was last taken.
        now: Current point of the run.
    """
    if not every.seconds or now.rows <= last.rows:
        return None
    return max(0.0, every.seconds - (now.seconds - last.seconds))
