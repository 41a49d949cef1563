"""Idle processor time: how much there is, and calls that run in idle time only.

A thread under SCHED_IDLE is preempted at once by a thread that wakes for a request. No other priority
guarantees that (docs/decisions/0010). A load therefore runs in idle time if there is enough of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from headrace.base import cpus

LOOK_SECONDS = 1.0
"""Interval at which the thread that waits for a call in idle time checks whether the call is too slow."""

_SAMPLE_SECONDS = 0.5
_ENOUGH_SHARE = 0.02
"""Least idle share of a processor for which idle time is tried. `/proc/stat` cannot resolve much less."""

_STARVING_SHARE = 0.01
"""Share of a processor below which a call that wants to run counts as starving."""

_PATIENCE_SECONDS = 5.0
_SLOW_SHARE = 0.1
"""Share below which a load older than ``_PATIENCE_SECONDS`` moves from idle time to a fixed share."""

_NOT_AGAIN_SECONDS = 5.0
"""Pause after idle time was too little, so that one version does not wait for it several times."""

ResultT = TypeVar("ResultT")


class IdleTime:
    """Measures the recently idle share of a processor."""

    def __init__(self) -> None:
        """Begin without samples."""
        self._seen: deque[tuple[float, float, dict[int, float]]] = deque(maxlen=2)
        self._used = 0.0
        self._not_before = 0.0

    def look(self) -> None:
        """Take a sample; called when a loader thread that yields starts, so at least at each scan."""
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] > _SAMPLE_SECONDS:
            self._seen.append((now, self._used, cpus.idle_seconds()))

    def is_enough(self) -> bool:
        """Return whether a call should run in idle time."""
        return time.monotonic() >= self._not_before and self._share() >= _ENOUGH_SHARE

    def use(self, seconds: float) -> None:
        """Add processor time that was used by idle calls, so that it still counts as idle."""
        self._used += seconds

    def was_too_little(self) -> None:
        """Stop using idle time for a while, after a call had to be repeated elsewhere."""
        self._not_before = time.monotonic() + _NOT_AGAIN_SECONDS

    def _share(self) -> float:
        """Return the idle share of the most idle processor; 0 if it is unknown."""
        if not self._seen:
            return 0.0
        then, used, before = self._seen[0]
        passed = time.monotonic() - then
        if passed < _SAMPLE_SECONDS:
            return 0.0
        shares = ((idle - before[cpu]) / passed for cpu, idle in cpus.idle_seconds().items() if cpu in before)
        return max(shares, default=0.0) + (self._used - used) / passed


@dataclass(frozen=True, slots=True)
class Progress:
    """Processor time of a thread at one moment.

    Attributes:
        at: The moment, in seconds on the monotonic clock.
        ran: Seconds for which it had run.
        waited: Seconds for which it had been runnable without getting a processor.
    """

    at: float
    ran: float
    waited: float

    def got_less(self, share: float, before: Progress) -> bool:
        """Return whether the thread, since ``before``, mostly waited and got less than ``share``."""
        passed = self.at - before.at
        return self.ran - before.ran < share * passed and self.waited - before.waited > passed / 2


def is_too_slow(since: float, began: Progress, before: Progress, now: Progress) -> bool:
    """Return whether a call in idle time should move to a share of the processor.

    Args:
        since: Start of the load that the call is part of, on the monotonic clock.
        began: Progress at the start of the call.
        before: Progress at the last check.
        now: Current progress.
    """
    lasts_long = now.at - since > _PATIENCE_SECONDS
    return now.got_less(_STARVING_SHARE, before) or (lasts_long and now.got_less(_SLOW_SHARE, began))


class IdleCall(Generic[ResultT]):
    """A call in a thread that gets idle time only.

    Attributes:
        ended: Set when the result is available.
        result: The call's return value or exception.
        dropped: Whether the call has been repeated elsewhere, so that its result is not needed.
    """

    def __init__(self, call: Callable[[], ResultT], idle: IdleTime, since: float) -> None:
        """Create the call without starting it.

        Args:
            call: Function to run.
            idle: Receives the time used, and a report if the call is dropped.
            since: Start of the load that the call is part of, on the monotonic clock.
        """
        self.ended = threading.Event()
        self.result: Future[ResultT] = Future()
        self._call, self._idle, self._since = call, idle, since
        self.dropped = False
        self._thread = 0
        self._began = self._before = Progress(time.monotonic(), 0.0, 0.0)

    def run(self) -> None:
        """Run the call; the main function of its thread."""
        self._thread = threading.get_native_id()
        _here.work = self
        with suppress(OSError, AttributeError):  # not Linux, or not permitted
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        answer(self.result, self._call, ())
        self._idle.use(time.thread_time())
        self.ended.set()

    def is_too_slow(self) -> bool:
        """Return whether the call got too little processor time; True if that is unknown.

        The function ``is_too_slow`` decides.
        """
        try:
            told = Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()
            now = Progress(time.monotonic(), int(told[0]) / 1e9, int(told[1]) / 1e9)
        except (OSError, IndexError, ValueError):
            return True  # unknown, and the call has taken long already
        before, self._before = self._before, now
        return is_too_slow(self._since, self._began, before, now)

    def drop(self) -> None:
        """Record that the call is repeated elsewhere."""
        self.dropped = True
        self._idle.was_too_little()


def answer(result: Future[ResultT], call: Callable[..., ResultT], args: tuple[object, ...]) -> None:
    """Run a call and set its return value or exception as the result of a future."""
    try:
        result.set_result(call(*args))
    except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
        result.set_exception(error)


def stop_if_dropped() -> None:
    """Stop a call in idle time if it has been repeated elsewhere; called between its steps."""
    work: IdleCall[object] | None = getattr(_here, "work", None)
    if work is not None and work.dropped:
        raise _Dropped


class _Dropped(BaseException):
    """Ends a dropped call. Not an `Exception`, so that handlers of a model's errors do not catch it."""


_here = threading.local()
