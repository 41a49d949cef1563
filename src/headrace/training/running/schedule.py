"""When to publish and when to save: pure decisions on how far a run is."""

from __future__ import annotations

from typing import NamedTuple


class Every(NamedTuple):
    """How often something is done.

    Attributes:
        rows: When the stream's rows pass a multiple of this; 0 for never.
        seconds: When so much time has passed since it was last done; 0 for never.
    """

    rows: int = 0
    seconds: float = 0.0


NEVER = Every()


class Mark(NamedTuple):
    """How far a run is.

    Attributes:
        rows: The rows taken from the stream.
        seconds: The time since the run began.
    """

    rows: int = 0
    seconds: float = 0.0


def is_due(every: Every, last: Mark, now: Mark) -> bool:
    """Decide whether something is to be done now.

    Multiples of rows count from the stream's first row, so that a resumed run does things where the
    undisturbed one would. Without new rows there is nothing to do.

    Args:
        every: How often.
        last: Where the run was when it was done last.
        now: Where the run is.
    """
    if now.rows <= last.rows:
        return False
    passed = every.rows > 0 and now.rows // every.rows > last.rows // every.rows
    return passed or (every.seconds > 0.0 and now.seconds - last.seconds >= every.seconds)
