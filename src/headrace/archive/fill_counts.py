"""What filling comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FillCounts:
    """What filling one space came to, since the process began.

    Attributes:
        filled: How many vectors were made and stored.
        there: How many keys had one already.
        dead: How many became dead letters.
        retried: How many calls of an embedder or of a store were made again.
        late_seconds: How long the keys had waited, together, from the queue to the store.
    """

    filled: int = 0
    there: int = 0
    dead: int = 0
    retried: int = 0
    late_seconds: float = 0.0
