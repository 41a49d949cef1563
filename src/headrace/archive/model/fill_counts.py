"""Counts of filling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FillCounts:
    """Counts of filling one space since the process started.

    Attributes:
        filled: Number of vectors made and stored.
        there: Number of keys that already had a vector.
        dead: Number of keys that became dead letters.
        late_seconds: Total time from queueing to storing, of all filled keys.
    """

    filled: int = 0
    there: int = 0
    dead: int = 0
    late_seconds: float = 0.0
