"""Describe how a model's process ended, and decide when to restart it, by its recent ends."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

WINDOW_SECONDS = 300.0
"""Time for which the end of a process counts."""

MOST_AT_ONCE = 5
"""Number of ends in that time from which the longest pause applies."""

STEADY_SECONDS = 10.0
"""Serving time from which a process that exceeds its memory limit is replaced without a pause."""

ANOTHER_RELEASE_CODE = 78
"""Exit code of a process of another release than its server."""

_FIRST_PAUSE_SECONDS = 1.0


class Ending(NamedTuple):
    """End of a process.

    Attributes:
        reason: One of ``crash``, ``exit``, ``killed``, ``memory``, ``hang``, ``start``, ``protocol`` and
            ``closed``.
        said: Phrase for messages, such as "was ended by SIGSEGV".
    """

    reason: str
    said: str


def ending_of(code: int) -> Ending:
    """Return the Ending for an exit code.

    Args:
        code: Exit code as in ``subprocess``: negative for a signal.
    """
    if code == ANOTHER_RELEASE_CODE:
        said = (
            "ended: the installed headrace is not the release that this server started with; "
            "restart the server"
        )
        return Ending("start", said)
    if code >= 0:
        return Ending("exit", f"ended by itself with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":  # not by headrace, which records its own reason
        return Ending("killed", "was ended by SIGKILL (by a user, or by the system when out of memory)")
    return Ending("crash", f"was ended by {name}")


def pause_before(ends: Sequence[float], now: float, longest_seconds: float) -> float:
    """Return the pause before a process is restarted, in seconds.

    The first restart is immediate, and the next ones follow after 1, 2 and 4 s. From ``MOST_AT_ONCE`` ends
    within ``WINDOW_SECONDS`` the pause is ``longest_seconds``.

    Args:
        ends: Times at which processes of this version ended, including this end.
        now: Current time on the same clock.
        longest_seconds: Upper bound of the pause.
    """
    counted = _within_window(ends, now)
    if counted <= 1:
        return 0.0
    if counted >= MOST_AT_ONCE:
        return longest_seconds
    return float(min(longest_seconds, _FIRST_PAUSE_SECONDS * 2 ** (counted - 2)))


class Restarts:
    """Counts the restarts of all processes of one version.

    Attributes:
        counts: Number of restarts by reason.
        now: Monotonic clock in seconds.
    """

    def __init__(self, longest_pause_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Begin without restarts.

        Args:
            longest_pause_seconds: Longest pause before a process is restarted.
            now: Monotonic clock in seconds.
        """
        self.counts: Counter[str] = Counter()
        self._longest_pause_seconds = longest_pause_seconds
        self.now = now
        self._ends: deque[float] = deque(maxlen=MOST_AT_ONCE)
        self._lock = threading.Lock()

    def count(self, reason: str) -> float:
        """Count the end of a process, or a start that failed. Thread-safe.

        Args:
            reason: Reason as in ``Ending``.

        Returns:
            Pause in seconds before the next process is started.
        """
        with self._lock:
            now = self.now()
            self._ends.append(now)
            self.counts[reason] += 1
            return pause_before(self._ends, now, self._longest_pause_seconds)

    def count_grown(self, served_seconds: float) -> float:
        """Count a process that is replaced because it exceeds its memory limit. Thread-safe.

        A leak takes time, and a pause would let it go on. A process that is too large soon after its start
        counts as an end: the next one will probably be too large as well.

        Args:
            served_seconds: Time for which it has served.

        Returns:
            Pause in seconds before the next process is started.
        """
        if served_seconds < STEADY_SECONDS:
            return self.count("memory")
        with self._lock:
            self.counts["memory"] += 1
        return 0.0

    @property
    def lately(self) -> int:
        """Number of ends within ``WINDOW_SECONDS``, counted up to ``MOST_AT_ONCE``. Thread-safe."""
        with self._lock:
            return _within_window(self._ends, self.now())


def _within_window(ends: Iterable[float], now: float) -> int:
    return sum(now - end < WINDOW_SECONDS for end in ends)
