"""When a model's process is started again after it has ended: a pure decision, and the counts it needs."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

WINDOW_SECONDS = 300.0
"""How long an end of a process counts."""

MOST_AT_ONCE = 5
"""So many ends in that time, and it is left alone for long before it is tried again."""

ANOTHER_RELEASE_CODE = 78
"""What a process ends with that is of another release than its server."""

_FIRST_PAUSE_SECONDS = 1.0


class Ending(NamedTuple):
    """How a process ended.

    Attributes:
        reason: In a word: ``crash``, ``exit``, ``killed``, ``memory``, ``hang``, ``start``, ``protocol`` or
            ``closed``.
        said: What is said of it: "was ended by SIGSEGV".
    """

    reason: str
    said: str


def ending_of(code: int) -> Ending:
    """What an exit code says.

    Args:
        code: As ``subprocess`` gives it: a signal's number below zero.
    """
    if code == ANOTHER_RELEASE_CODE:
        said = "ended: the installed headrace is another one than this server began with; start that again"
        return Ending("start", said)
    if code >= 0:
        return Ending("exit", f"ended by itself with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":  # nobody here did it
        return Ending("killed", "was ended by SIGKILL (by somebody, or by the system when memory was short)")
    return Ending("crash", f"was ended by {name}")


def pause_before(ends: Sequence[float], now: float, longest_seconds: float) -> float:
    """How long to wait before a process is started again, in seconds.

    The first is started at once, the next ones after a second, two, four; after ``MOST_AT_ONCE`` ends within
    ``WINDOW_SECONDS`` it is left alone for ``longest_seconds``, each time.

    Args:
        ends: When processes of this version have ended, the last one now.
        now: The time, by the same clock.
        longest_seconds: The longest pause.
    """
    counted = sum(now - end < WINDOW_SECONDS for end in ends)
    if counted <= 1:
        return 0.0
    if counted >= MOST_AT_ONCE:
        return longest_seconds
    return float(min(longest_seconds, _FIRST_PAUSE_SECONDS * 2 ** (counted - 2)))


class Restarts:
    """The restarts of all processes of one version.

    Attributes:
        counts: How many there were, by reason.
    """

    def __init__(self, longest_pause_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Start at zero.

        Args:
            longest_pause_seconds: The longest pause before a process is started again.
            now: The clock, in seconds.
        """
        self.counts: Counter[str] = Counter()
        self._longest_pause_seconds = longest_pause_seconds
        self._now = now
        self._ends: deque[float] = deque(maxlen=MOST_AT_ONCE)
        self._lock = threading.Lock()

    def count(self, reason: str) -> float:
        """Count the end of a process, in any thread.

        Args:
            reason: Why it ended, in a word.

        Returns:
            How many seconds to wait before the next one is started.
        """
        with self._lock:
            now = self._now()
            self._ends.append(now)
            self.counts[reason] += 1
            return pause_before(self._ends, now, self._longest_pause_seconds)

    @property
    def lately(self) -> int:
        """How many of the last ends are remembered."""
        return len(self._ends)
