"""Threads for loading, warming up, closing and listing: one a call, so that none waits for another.

They give way to the requests, except while there are none to give way to: at the start, and at the end.
"""

from __future__ import annotations

import _thread
import errno
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from headrace import cpus
from headrace.clock import Clock

_log = logging.getLogger(__name__)

_NICER_BY = 9
"""The weight of a thread is 1024 / 1.25 ** nice: beside one of the ordinary weight this leaves 12 %."""

_LOWEST = 19

_LOOK_SECONDS = 0.5
_IDLE_SHARE = 0.05
"""From this part of a processor idle on, a call runs in idle time: half a second of work then takes ten."""

_STARVING_SECONDS = 1.0
_STARVING_SHARE = 0.03
"""With less of a processor than this, and the rest spent waiting for it, a call starves."""

NO_THREAD = (OSError, RuntimeError)
"""What an Executor raises when it cannot start a thread; one may be had a little later."""

ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs calls in threads of its own."""

    def submit(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a call some time soon, in another thread; one of NO_THREAD is raised if there is none."""

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> object:
        """The same for a call that gives way in parts: those that it has run by ``when_idle``."""


class LoaderThreads:
    """Runs each call in a new thread, which keeps no process from ending.

    A pool would do with fewer, but one call that hangs for ever would take one of its threads away for good,
    and a thread that has given way cannot take that back. Who submits calls bounds how many run.
    """

    def __init__(self, clock: Clock, gives_way: Callable[[], bool]) -> None:
        """Start none yet.

        Args:
            clock: Calls in the serving thread.
            gives_way: Asked in the thread that submits: whether there are requests to give way to.
        """
        self._clock = clock
        self._gives_way = gives_way
        self._idle = _IdleTime()

    def submit(self, call: Callable[..., object], /, *args: object) -> None:
        """Run a call in a new thread.

        On Linux a thread inherits the priority of the one that starts it: whatever starts threads of its own
        in here, a runtime's pool for example, has them at this thread's priority for good.

        Args:
            call: What to run; what it raises is logged.
            args: Its arguments.
        """
        self._start(self._gives_way(), _after_taking_less, (call, args))

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> None:
        """Run a call in a new thread that gives way in parts: what it has ``when_idle`` or ``share`` run.

        In between it holds Python's lock, and whoever holds that must not be put aside for long.

        Args:
            call: What to run; what it raises is logged.
            args: Its arguments.
        """
        self._start(self._gives_way(), call, args)

    def at_serving_priority(self, call: Callable[..., ResultT], /, *args: object) -> ResultT:
        """Run a call in a thread with the priority of the serving one, and wait for its result.

        Args:
            call: What to run, from a loader thread: one that has given way cannot take that back.
            args: Its arguments.
        """
        result: Future[ResultT] = Future()
        self._clock.call_soon_threadsafe(self._start_answering, result, call, args)
        return result.result()

    def when_idle(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a call that nearly all the time is without Python's lock, and wait for its result.

        Where there is idle time, a thread that gets nothing else runs it: whoever wakes for a request
        interrupts such a thread at once. If it gets nothing after all, the call is made again with a share of
        the processor, and the other result is dropped.

        Args:
            call: What to run, from a loader thread; it may run twice side by side.
        """
        if not hasattr(_here, "threads") or self._idle.share() < _IDLE_SHARE:
            return self.share(call)
        work = _IdleCall(call, self._idle)
        _start_thread(work.run, ())
        while not work.ended.wait(_STARVING_SECONDS):
            if work.starves():
                work.dropped = True
                return self.share(call)
        return work.result.result()

    def share(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a call with a small share of the processor, and wait for its result.

        Args:
            call: What to run, from a loader thread.
        """
        if not hasattr(_here, "threads") or getattr(_here, "takes_less", False):
            return call()
        result: Future[ResultT] = Future()
        _start_thread(self._run, (True, _after_taking_less, (_answer, (result, call, ()))))
        return result.result()

    def _start(self, gives_way: bool, call: Callable[..., object], args: tuple[object, ...]) -> None:
        _start_thread(self._run, (gives_way, call, args))

    def _start_answering(
        self, result: Future[ResultT], call: Callable[..., ResultT], args: tuple[object, ...]
    ) -> None:
        try:
            self._start(False, _answer, (result, call, args))
        except NO_THREAD as error:  # it is raised where it is waited for
            result.set_exception(error)

    def _run(self, gives_way: bool, call: Callable[..., object], args: tuple[object, ...]) -> None:
        try:
            if gives_way:
                _here.threads = self
                self._idle.look()
            call(*args)
        except Exception:  # noqa: BLE001  # The boundary: nobody waits for a result.
            _log.exception("a loader thread failed")


def _start_thread(call: Callable[..., object], args: tuple[object, ...]) -> None:
    # Thread.start() would wait until the new thread runs: on a busy processor, nobody is answered then.
    try:
        _thread.start_new_thread(call, args)
    except (RuntimeError, MemoryError) as error:  # which says nothing of the reason: it is nearly always this
        raise OSError(errno.EAGAIN, "no thread can be started") from error


def _answer(result: Future[ResultT], call: Callable[..., ResultT], args: tuple[object, ...]) -> None:
    try:
        result.set_result(call(*args))
    except BaseException as error:  # noqa: BLE001  # It is raised where it is waited for.
        result.set_exception(error)


class _IdleTime:
    """How much of a processor nobody wanted, lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, dict[int, float]]] = deque(maxlen=2)
        self._used = 0.0

    def look(self) -> None:
        """Remember how it is now; called at each look at the model directories, every second or so."""
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] > _LOOK_SECONDS:
            self._seen.append((now, self._used, cpus.idle_seconds()))

    def use(self, seconds: float) -> None:
        """Count as idle what our own calls used of idle time."""
        self._used += seconds

    def share(self) -> float:
        """The part of the time for which the most idle processor was idle; 0 if that cannot be told."""
        if not self._seen:
            return 0.0
        then, used, before = self._seen[0]
        passed = time.monotonic() - then
        if passed < _LOOK_SECONDS:
            return 0.0
        shares = ((idle - before[cpu]) / passed for cpu, idle in cpus.idle_seconds().items() if cpu in before)
        return max(shares, default=0.0) + (self._used - used) / passed


class _IdleCall(Generic[ResultT]):
    """A call in a thread that only gets idle time."""

    def __init__(self, call: Callable[[], ResultT], idle: _IdleTime) -> None:
        self.ended = threading.Event()
        self.result: Future[ResultT] = Future()
        self.dropped = False
        self._call, self._idle = call, idle
        self._thread = 0
        self._before = time.monotonic(), 0.0, 0.0

    def run(self) -> None:
        """The thread."""
        self._thread = threading.get_native_id()
        _here.work = self
        with suppress(OSError, AttributeError):  # not Linux, or forbidden here
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _answer(self.result, self._call, ())
        self._idle.use(time.thread_time())
        self.ended.set()

    def starves(self) -> bool:
        """Whether, since this was asked last, it has waited for a processor and hardly got one."""
        try:
            told = Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()
            ran, waited = int(told[0]) / 1e9, int(told[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return True  # it is not told, and took long: the safe answer
        (then, ran_then, waited_then), now = self._before, time.monotonic()
        self._before = now, ran, waited
        return ran - ran_then < _STARVING_SHARE * (now - then) and waited - waited_then > (now - then) / 2


def _after_taking_less(call: Callable[..., object], args: tuple[object, ...]) -> None:
    if hasattr(_here, "threads"):
        _take_less()
    call(*args)


def _take_less() -> None:
    """Have a small share of the processor that nobody can take away, and interrupt nobody.

    Beside a thread that never sleeps, nice 9 is an eighth of a core. SCHED_IDLE would be what is left over:
    beside busy processes nothing, and whoever is put aside with Python's lock would keep it for seconds.
    """
    _here.takes_less = True
    if sys.platform != "linux":  # elsewhere priorities belong to whole processes
        return
    with suppress(OSError):  # a sandbox may forbid it; loading works all the same
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: this thread
        os.setpriority(os.PRIO_PROCESS, 0, min(_LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + _NICER_BY))


def stop_if_dropped() -> None:
    """Between two pieces of a call that is left to idle time: stop it if somebody else makes it by now."""
    work: _IdleCall[object] | None = getattr(_here, "work", None)
    if work is not None and work.dropped:
        raise _Dropped


class _Dropped(Exception):
    """Somebody else does the work."""


_here = threading.local()
