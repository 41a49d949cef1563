"""Threads for loading, warming up, closing and listing: one thread per call, so that no call delays another.

They yield the processor to requests, except during start-up and shutdown, when there are none.
"""

from __future__ import annotations

import _thread
import errno
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from headrace.base.clock import Clock, Timer
from headrace.base.cpus import take_less
from headrace.lifecycle.idle_time import LOOK_SECONDS, IdleCall, IdleTime, answer
from headrace.lifecycle.leases import LoadedT

_log = logging.getLogger(__name__)

NO_THREAD = (OSError, RuntimeError)
"""Exceptions that an Executor raises if it cannot start a thread; a later call may succeed."""

ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs functions in threads of its own."""

    def submit(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a function in another thread; raise one of NO_THREAD if none can be started."""

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a function that yields to requests only in the parts it runs by ``when_idle`` or ``share``."""


class LoaderThreads:
    """Runs each function in a new thread, which does not keep the process from exiting.

    A pool would need fewer threads, but a function that hangs would occupy one of them for ever, and a thread
    cannot raise its priority again after lowering it. The caller limits the number of threads.
    """

    def __init__(self, clock: Clock, gives_way: Callable[[], bool]) -> None:
        """Create the executor without starting a thread.

        Args:
            clock: The serving thread's clock.
            gives_way: Called in the submitting thread; returns whether there are requests to yield to.
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
        self._start(self._gives_way(), _at_low_priority, (call, args))

    def submit_in_parts(self, call: Callable[..., object], /, *args: object) -> None:
        """Run a function in a new thread that yields only in parts run by ``when_idle`` or ``share``.

        In between it holds the GIL, and a thread that holds the GIL must not be suspended for long.

        Args:
            call: The function; its exceptions are logged.
            args: Its arguments.
        """
        self._start(self._gives_way(), call, args)

    def at_serving_priority(self, call: Callable[..., ResultT], /, *args: object) -> ResultT:
        """Run a function in a thread with the serving thread's priority, and return its result.

        Call this in a loader thread, which cannot raise its own priority again.

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

        Call this in a loader thread.

        Args:
            call: The function.
        """
        if not hasattr(_here, "threads") or getattr(_here, "takes_less", False):
            return call()
        result: Future[ResultT] = Future()
        _start_thread(self._run, (True, _at_low_priority, (answer, (result, call, ()))))
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


def _at_low_priority(call: Callable[..., object], args: tuple[object, ...]) -> None:
    if hasattr(_here, "threads"):
        _here.takes_less = True
        take_less()
    call(*args)


_here = threading.local()


# Versions are closed in loader threads, with an optional timeout. Invariant: ``on_closed`` is called exactly
# once, in the serving thread, when the version is closed or the timeout has passed. A thread that hangs
# cannot be ended; it is left running.

_RETRY_SECONDS = 1.0
"""Pause before retrying a close for which no thread could be started."""


class _Close(Generic[LoadedT]):
    """A close in progress; owned by the serving thread, except for ``loaded``."""

    __slots__ = ("loaded", "name", "on_closed", "timer")

    def __init__(self, name: str, loaded: LoadedT, on_closed: Callable[[], object] | None) -> None:
        self.name = name
        self.loaded = loaded
        self.on_closed = on_closed
        self.timer: Timer | None = None


class Closes(Generic[LoadedT]):
    """Closes versions in loader threads."""

    def __init__(self, close: Callable[[LoadedT], object], clock: Clock, executor: Executor) -> None:
        """Begin without closes.

        Args:
            close: Frees a version's resources, in a loader thread; ``Loader.close``.
            clock: The serving thread's clock.
            executor: Runs the loader threads.
        """
        self._close = close
        self._clock = clock
        self._executor = executor

    def begin(
        self,
        name: str,
        loaded: LoadedT,
        limit_seconds: float | None = None,
        on_closed: Callable[[], object] | None = None,
    ) -> None:
        """Close a version in a loader thread, as soon as one can be started.

        Args:
            name: The model and the version, for the log.
            loaded: The version to close.
            limit_seconds: Timeout after which ``on_closed`` is called anyway; None for none.
            on_closed: Called when the version is closed or the timeout has passed.
        """
        one = _Close(name, loaded, on_closed)
        if limit_seconds is not None:
            one.timer = self._clock.call_later(limit_seconds, self._abandon, one, limit_seconds)
        self._start(one)

    def here(self, name: str, loaded: LoadedT) -> None:
        """Close a version in the running loader thread; errors are logged."""
        try:
            self._close(loaded)
        except BaseException:  # noqa: BLE001  # a model may raise anything, and no caller waits
            _log.exception("closing %s failed", name)

    def _start(self, one: _Close[LoadedT]) -> None:
        try:
            self._executor.submit(self._run, one)
        except NO_THREAD as error:
            _log.warning("cannot close %s now, retrying soon: %s", one.name, error)
            self._clock.call_later(_RETRY_SECONDS, self._start, one)

    def _run(self, one: _Close[LoadedT]) -> None:
        """Close a version in a loader thread, and report back."""
        self.here(one.name, one.loaded)
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._clock.call_soon_threadsafe(self._end, one)

    def _abandon(self, one: _Close[LoadedT], limit_seconds: float) -> None:
        limit = f"versions.load_timeout_seconds = {limit_seconds:g}"
        _log.warning(
            "%s: closing took longer than %s, and was abandoned; its resources stay in use until it returns",
            one.name,
            limit,
        )
        self._end(one)

    def _end(self, one: _Close[LoadedT]) -> None:
        if one.timer is not None:
            one.timer.cancel()
        on_closed, one.on_closed = one.on_closed, None
        if on_closed is not None:
            on_closed()
