"""How much a caller may ask, in all processes of a server together: a pure decision over a few numbers."""

from __future__ import annotations

from typing import NamedTuple

from headrace.config.access import CallerSettings


class CallerLimits(NamedTuple):
    """What a key limits, or the settings for tokens; 0 for no limit.

    Attributes:
        requests_per_second: Calls, and messages of streams.
        rows_per_second: Rows of predictions.
        burst_seconds: How many seconds' worth may come at once.
        concurrent_requests: Calls that are being answered.
    """

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    burst_seconds: float = 1.0
    concurrent_requests: int = 0

    @classmethod
    def of(cls, settings: CallerSettings) -> CallerLimits:
        """Those that settings have."""
        return cls(*(getattr(settings, name) for name in cls._fields))

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.requests_per_second or self.rows_per_second or self.concurrent_requests)


def taken(due: float, now: float, amount: float, rate: float) -> float:
    """When what was taken so far has been earned, once some more is taken.

    Args:
        due: When what was taken before has been earned, on the monotonic clock.
        now: The time.
        amount: What is taken.
        rate: How much is earned a second.
    """
    return max(due, now) + amount / rate


def wait(due: float, now: float, burst_seconds: float) -> float:
    """How long nothing may be taken; 0.0 if something may now.

    Something may as long as less than a burst is owed, however much it is: so what is known only later, and
    what is larger than a burst, is let through once, and paid for afterwards.

    Args:
        due: When what was taken before has been earned, on the monotonic clock.
        now: The time.
        burst_seconds: How much may be owed, in seconds.
    """
    return max(0.0, due - now - burst_seconds)
