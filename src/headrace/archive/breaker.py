"""Whether a store is asked at all, and how long anybody waits for it: a pure record of how its reads went."""

from __future__ import annotations

from collections import deque

OPENS_AFTER = 3
"""How many reads in a row must be late or fail before nobody waits for the store any more."""

_REMEMBERED = 512
_LOOKED_AT_EVERY = 32
_TOO_FEW = 20
_RANK = 0.99
_PATIENCE = 1.5
_LEAST_SECONDS = 0.001


class Breaker:
    """Opens when a store is slow, down or wrong; closed by whoever sees that the store answers again.

    A late read is one that took longer than reads usually do: longer than one and a half times what 99 of 100
    take. So lookups notice an outage within a few reads, and wait no longer for it than that.
    """

    def __init__(self, longest_seconds: float) -> None:
        """Begin closed.

        Args:
            longest_seconds: How long to wait while nothing is known.
        """
        self._longest = longest_seconds
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads = 0
        self._troubles = 0
        self.patience_seconds = longest_seconds
        self.is_open = False

    def answered(self, seconds: float) -> None:
        """A read has been answered.

        Args:
            seconds: How long it took.
        """
        self._times.append(seconds)
        self._reads += 1
        if seconds <= self.patience_seconds:
            self._troubles = 0
        if len(self._times) >= _TOO_FEW and self._reads % _LOOKED_AT_EVERY == 0:
            ordered = sorted(self._times)
            usual = ordered[int(_RANK * (len(ordered) - 1))]
            self.patience_seconds = min(self._longest, max(_LEAST_SECONDS, _PATIENCE * usual))

    def troubled(self) -> None:
        """A read has failed, or somebody has given up waiting for one."""
        self._troubles += 1
        if self._troubles >= OPENS_AFTER:
            self.is_open = True

    def close(self) -> None:
        """The store has answered a probe."""
        self._troubles = 0
        self.is_open = False
