"""Circuit breaker of a remote store: decides from read times whether to ask it and how long to wait."""

from __future__ import annotations

from collections import deque

OPENS_AFTER = 3
"""Number of consecutive late or failed reads after which lookups no longer wait for the store."""

_REMEMBERED = 512
_LOOKED_AT_EVERY = 32
_TOO_FEW = 20
_RANK = 0.99
_PATIENCE = 1.5
_LEAST_SECONDS = 0.001


class Breaker:
    """Opens when a store is slow, down or faulty; its owner closes it when the store answers again.

    A read is late if it takes longer than 1.5 times the 99th percentile of recent reads. Lookups therefore
    notice an outage within a few reads, and wait no longer than that for each.
    """

    def __init__(self, longest_seconds: float) -> None:
        """Start closed.

        Args:
            longest_seconds: Maximum patience, used until enough reads were timed.
        """
        self._longest = longest_seconds
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads = 0
        self._troubles = 0
        self.patience_seconds = longest_seconds
        self.is_open = False

    def answered(self, seconds: float) -> None:
        """Record that a read was answered.

        Args:
            seconds: Its duration.
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
        """Record that a read failed, or that a caller stopped waiting for it."""
        self._troubles += 1
        if self._troubles >= OPENS_AFTER:
            self.is_open = True

    def close(self) -> None:
        """Close the breaker, after the store has answered a probe."""
        self._troubles = 0
        self.is_open = False
