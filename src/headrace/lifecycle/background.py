"""Threads for loading, warming up, closing and listing: one a call, so that none waits for another.

They give way to the requests, except while there are none to give way to: at the start, and at the end.
"""

from __future__ import annotations

import _thread
import errno
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from headrace.clock import Clock
from headrace.cpus import take_less
from headrace.lifecycle.idle import LOOK_SECONDS, IdleCall, IdleTime, answer

_log = logging.getLogger(__name__)

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
        self._idle = IdleTime()

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
        interrupts such a thread at once. If that is too slow, the call is made again with a share of the
        processor, and the other result is dropped.

        Args:
            call: What to run, from a loader thread; it may run twice side by side.
        """
        if not hasattr(_here, "threads") or not self._idle.is_enough():
            return self.share(call)
        work = IdleCall(call, self._idle, _here.since)
        _start_thread(work.run, ())
        while not work.ended.wait(LOOK_SECONDS):
            if work.is_too_slow():
                work.drop()
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
        _start_thread(self._run, (True, _after_taking_less, (answer, (result, call, ()))))
        return result.result()

    def _start(self, gives_way: bool, call: Callable[..., object], args: tuple[object, ...]) -> None:
        _start_thread(self._run, (gives_way, call, args))

    def _start_answering(
        self, result: Future[ResultT], call: Callable[..., ResultT], args: tuple[object, ...]
    ) -> None:
        try:
            self._start(False, answer, (result, call, args))
        except NO_THREAD as error:  # it is raised where it is waited for
            result.set_exception(error)

    def _run(self, gives_way: bool, call: Callable[..., object], args: tuple[object, ...]) -> None:
        try:
            if gives_way:
                _here.threads, _here.since = self, time.monotonic()
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


def _after_taking_less(call: Callable[..., object], args: tuple[object, ...]) -> None:
    if hasattr(_here, "threads"):
        _here.takes_less = True
        take_less()
    call(*args)


_here = threading.local()
