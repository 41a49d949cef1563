"""Threads for loading, warming up, closing and listing: one thread per call, so that no call delays another.

They give way to requests, except during start-up and shutdown, when there are none.
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

from headrace.base.clock import Clock
from headrace.base.cpus import take_less
from headrace.lifecycle.idle_time import LOOK_SECONDS, IdleCall, IdleTime, answer

_log = logging.getLogger(__name__)

NO_THREAD = (OSError, RuntimeError)
"""Exceptions that an Executor raises if it cannot start a thread; a later call may succeed."""

ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs functions in threads of its own."""

    def submit(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a function in another thread; raise one of NO_THREAD if none can be started."""

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a function that gives way only in the parts it runs by ``when_idle`` or ``share``."""


class LoaderThreads:
    """Runs each function in a new thread, which does not keep the process from exiting.

    A pool would need fewer threads, but a function that hangs would occupy one of them for ever, and a thread
    cannot raise its priority again after lowering it. The caller limits the number of threads.
    """

    def __init__(self, clock: Clock, gives_way: Callable[[], bool]) -> None:
        """Create the executor without starting a thread.

        Args:
            clock: The serving thread's clock.
            gives_way: Called in the submitting thread; returns whether there are requests to give way to.
        """
        self._clock = clock
        self._gives_way = gives_way
        self._idle = IdleTime()

    def submit(self, call: Callable[..., object], /, *args: object) -> None:
        """Run a function in a new thread.

        On Linux a thread inherits the priority of the thread that starts it. Threads started by the function,
        such as a runtime's pool, therefore keep this thread's priority for good.

        Args:
            call: The function; its exceptions are logged.
            args: Its arguments.
        """
        self._start(self._gives_way(), _after_taking_less, (call, args))

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> None:
        """Run a function in a new thread that gives way only in parts run by ``when_idle`` or ``share``.

        In between it holds the GIL, and a thread that holds the GIL must not be suspended for long.

        Args:
            call: The function; its exceptions are logged.
            args: Its arguments.
        """
        self._start(self._gives_way(), call, args)

    def at_serving_priority(self, call: Callable[..., ResultT], /, *args: object) -> ResultT:
        """Run a function in a thread with the serving thread's priority, and return its result.

        To be called in a loader thread, which cannot raise its own priority again.

        Args:
            call: The function.
            args: Its arguments.
        """
        result: Future[ResultT] = Future()
        self._clock.call_soon_threadsafe(self._start_answering, result, call, args)
        return result.result()

    def when_idle(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a function that hardly ever holds the GIL, and return its result.

        If there is enough idle processor time, the function runs in a thread that gets idle time only, which
        a thread that wakes for a request preempts at once. If that is too slow, the function is run again
        with a share of the processor, and the first result is dropped. Call this in a loader thread.

        Args:
            call: The function; it may run twice concurrently.
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
        """Run a function with a small share of the processor, and return its result.

        To be called in a loader thread.

        Args:
            call: The function.
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
        except NO_THREAD as error:  # raised in the waiting thread
            result.set_exception(error)

    def _run(self, gives_way: bool, call: Callable[..., object], args: tuple[object, ...]) -> None:
        try:
            if gives_way:
                _here.threads, _here.since = self, time.monotonic()
                self._idle.look()
            call(*args)
        except Exception:  # noqa: BLE001  # no caller waits for a result
            _log.exception("a loader thread failed")


def _start_thread(call: Callable[..., object], args: tuple[object, ...]) -> None:
    # Thread.start() would block the serving thread until the new thread runs, which takes long under load.
    try:
        _thread.start_new_thread(call, args)
    except (RuntimeError, MemoryError) as error:  # neither carries an errno: it is nearly always EAGAIN
        raise OSError(errno.EAGAIN, "no thread can be started") from error


def _after_taking_less(call: Callable[..., object], args: tuple[object, ...]) -> None:
    if hasattr(_here, "threads"):
        _here.takes_less = True
        take_less()
    call(*args)


_here = threading.local()
