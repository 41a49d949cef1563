"""Quotas of new keys: a token bucket per caller."""

from __future__ import annotations

from collections import OrderedDict

_MOST_CALLERS = 10_000


class Quota:
    """Quota of new keys in one space, by caller.

    When there are too many callers to track, those that asked longest ago start again with a full bucket.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        """Limit each caller.

        Args:
            per_second: New keys per second, on average; 0 for no limit.
            burst: Maximum number of new keys at once.
        """
        self._per_second = per_second
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, keys: int, now: float) -> int:
        """Return how many of a caller's new keys may be queued, and charge the caller for them.

        Args:
            caller: Name of the caller; "" counts as one.
            keys: Number of its new keys.
            now: Monotonic time in seconds.
        """
        if not self._per_second:
            return keys
        left, since = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        taken = min(keys, int(left))
        self._buckets[caller] = left - taken, now
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return taken
