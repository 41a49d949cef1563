"""Counts of an archive: of filling its spaces, and of a model's inputs from it."""

from __future__ import annotations

import threading
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


@dataclass(frozen=True)
class Counted:
    """Counts of the rows of one input of a model from the archive.

    Attributes:
        keys: Number of rows with a key.
        found: Number of these that got a value.
        too_old: Number of these whose value was older than allowed.
    """

    keys: int
    found: int
    too_old: int


class InputTotals:
    """Totals of one input of a model since the process started, for all versions of the model.

    Attributes:
        keys: Number of rows with a key.
        found: Number of these that got a value.
        too_old: Number of these whose value was older than allowed.
    """

    __slots__ = ("_turn", "found", "keys", "too_old")

    def __init__(self) -> None:
        """Start at zero."""
        self.keys = self.found = self.too_old = 0
        self._turn = threading.Lock()

    def add(self, counted: Counted) -> None:
        """Add the counts of a batch, from any thread."""
        with self._turn:
            self.keys += counted.keys
            self.found += counted.found
            self.too_old += counted.too_old
