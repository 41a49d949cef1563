"""Limits on a caller, in all processes of a server together, as pure functions of a few numbers."""

from __future__ import annotations

from typing import NamedTuple

from headrace.config.access import CallerSettings


class CallerLimits(NamedTuple):
    """Limits on a caller, set by its key, or by the settings for tokens; 0 for no limit.

    Attributes:
        requests_per_second: Calls, and messages of streams, per second.
        rows_per_second: Rows of predictions per second.
        burst_seconds: Size of a burst, in seconds' worth of the rate.
        concurrent_requests: Calls being answered at a time.
    """

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    burst_seconds: float = 1.0
    concurrent_requests: int = 0

    @classmethod
    def of(cls, settings: CallerSettings) -> CallerLimits:
        """Return the limits in some settings."""
        return cls(*(getattr(settings, name) for name in cls._fields))

    @property
    def any(self) -> bool:
        """Whether any limit is set."""
        return bool(self.requests_per_second or self.rows_per_second or self.concurrent_requests)


def taken(due: float, now: float, amount: float, rate: float) -> float:
    """Return the time at which all that was taken will have been earned, including ``amount``.

    Args:
        due: Time at which what was taken before will have been earned, on the monotonic clock.
        now: Current time on that clock.
        amount: Amount to take.
        rate: Amount earned per second.
    """
    return max(due, now) + amount / rate


def wait(due: float, now: float, burst_seconds: float) -> float:
    """Return the seconds until something may be taken; 0.0 if it may be taken now.

    Taking is allowed while at most a burst is owed, whatever the amount. An amount that is known only later,
    or is larger than a burst, is therefore admitted, and delays what the caller takes next.

    Args:
        due: Time at which what was taken before will have been earned, on the monotonic clock.
        now: Current time on that clock.
        burst_seconds: Largest debt in seconds.
    """
    return max(0.0, due - now - burst_seconds)
