"""How many new keys a caller may have queued: a bucket for each, which fills with time."""

from __future__ import annotations

from collections import OrderedDict

_MOST_CALLERS = 10_000


class Quota:
    """New keys of one space, by caller.

    Of more callers than can be told apart, those that have asked longest ago begin anew, with a full bucket.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        """Limit each caller.

        Args:
            per_second: New keys a second, on average; 0 for no limit.
            burst: How many at once.
        """
        self._per_second = per_second
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, keys: int, now: float) -> int:
        """How many of some new keys a caller may have queued; that many are counted.

        Args:
            caller: Who asks; "" is one, too.
            keys: How many he has.
            now: The time in seconds.
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
