"""Idle time of the processors: how much there is, and calls that get nothing else.

A thread under SCHED_IDLE is interrupted at once by whoever wakes for a request, which no other priority is
(docs/decisions/0010). So a load is left to idle time where that is enough for it to arrive in time.
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

from headrace import cpus

LOOK_SECONDS = 1.0
"""How often who waits for a call in idle time looks whether it is too slow."""

_SAMPLE_SECONDS = 0.5
_ENOUGH_SHARE = 0.02
"""From this part of a processor idle on, idle time is tried. `/proc/stat` cannot tell much less apart."""

_STARVING_SHARE = 0.01
"""With less of a processor than this, and the rest spent waiting for it, a call starves."""

_PATIENCE_SECONDS = 5.0
_SLOW_SHARE = 0.1
"""A load that has lasted so long goes on in idle time only if it gets about what a share would give it."""

_NOT_AGAIN_SECONDS = 5.0
"""So long idle time is not tried after it was too little: one version must not wait for it several times."""

ResultT = TypeVar("ResultT")


class IdleTime:
    """How much of a processor nobody wanted, lately."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._seen: deque[tuple[float, float, dict[int, float]]] = deque(maxlen=2)
        self._used = 0.0
        self._not_before = 0.0

    def look(self) -> None:
        """Remember how it is now; called at each look at the model directories, every second or so."""
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] > _SAMPLE_SECONDS:
            self._seen.append((now, self._used, cpus.idle_seconds()))

    def is_enough(self) -> bool:
        """Whether a call should be left to it."""
        return time.monotonic() >= self._not_before and self._share() >= _ENOUGH_SHARE

    def use(self, seconds: float) -> None:
        """Count as idle what our own calls used of idle time."""
        self._used += seconds

    def was_too_little(self) -> None:
        """A call had to be made again elsewhere: leave none to idle time for a while."""
        self._not_before = time.monotonic() + _NOT_AGAIN_SECONDS

    def _share(self) -> float:
        """The part of the time for which the most idle processor was idle; 0 if that cannot be told."""
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
    """What a thread had got at some moment.

    Attributes:
        at: The moment, in seconds of the monotonic clock.
        ran: How many seconds it had run.
        waited: How many seconds it had wanted to run and got no processor.
    """

    at: float
    ran: float
    waited: float

    def got_less(self, share: float, before: Progress) -> bool:
        """Whether since then it wanted to run, and got less than this part of a processor."""
        passed = self.at - before.at
        return self.ran - before.ran < share * passed and self.waited - before.waited > passed / 2


def is_too_slow(since: float, began: Progress, before: Progress, now: Progress) -> bool:
    """Whether a call that is left to idle time would do better with a share of the processor.

    Args:
        since: When the load began that it is a part of.
        began: The call's beginning.
        before: When this was asked last.
        now: The present.
    """
    lasts_long = now.at - since > _PATIENCE_SECONDS
    return now.got_less(_STARVING_SHARE, before) or (lasts_long and now.got_less(_SLOW_SHARE, began))


class IdleCall(Generic[ResultT]):
    """A call in a thread that only gets idle time.

    Attributes:
        ended: Set when it has its result.
        result: What it returned or raised.
        dropped: Whether somebody else does it by now.
    """

    def __init__(self, call: Callable[[], ResultT], idle: IdleTime, since: float) -> None:
        """Start nothing yet.

        Args:
            call: What to run.
            idle: Learns what it used, and whether it was too slow.
            since: When the load began that it is a part of, by the monotonic clock.
        """
        self.ended = threading.Event()
        self.result: Future[ResultT] = Future()
        self._call, self._idle, self._since = call, idle, since
        self.dropped = False
        self._thread = 0
        self._began = self._before = Progress(time.monotonic(), 0.0, 0.0)

    def run(self) -> None:
        """The thread."""
        self._thread = threading.get_native_id()
        _here.work = self
        with suppress(OSError, AttributeError):  # not Linux, or forbidden here
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        answer(self.result, self._call, ())
        self._idle.use(time.thread_time())
        self.ended.set()

    def is_too_slow(self) -> bool:
        """Whether it has waited for a processor and hardly got one since this was asked last, or for long."""
        try:
            told = Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()
            now = Progress(time.monotonic(), int(told[0]) / 1e9, int(told[1]) / 1e9)
        except (OSError, IndexError, ValueError):
            return True  # it is not told, and took long: the safe answer
        before, self._before = self._before, now
        return is_too_slow(self._since, self._began, before, now)

    def drop(self) -> None:
        """Somebody else does it from now on."""
        self.dropped = True
        self._idle.was_too_little()


def answer(result: Future[ResultT], call: Callable[..., ResultT], args: tuple[object, ...]) -> None:
    """Make a call, and give what it returns or raises to who waits for it in another thread."""
    try:
        result.set_result(call(*args))
    except BaseException as error:  # noqa: BLE001  # It is raised where it is waited for.
        result.set_exception(error)


def stop_if_dropped() -> None:
    """Between two pieces of a call that is left to idle time: stop it if somebody else makes it by now."""
    work: IdleCall[object] | None = getattr(_here, "work", None)
    if work is not None and work.dropped:
        raise _Dropped


class _Dropped(BaseException):
    """Somebody else does the work. No `Exception`: a model's boundary would take it for the model's own."""


_here = threading.local()
