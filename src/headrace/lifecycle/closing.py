"""Closes what is not served any more, in loader threads: none is lost, and none is waited for without end.

Rule: ``on_closed`` is called exactly once, in the serving thread: when the version is closed, or when that
has taken too long. A thread that hangs cannot be ended; it is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from headrace.clock import Clock, Timer
from headrace.lifecycle.background import NO_THREAD, Executor
from headrace.lifecycle.handle import LoadedT

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""Until a thread is asked for again when there was none."""


class _Close(Generic[LoadedT]):
    """One that has begun; the serving thread has it, but for what is loaded."""

    __slots__ = ("loaded", "name", "on_closed", "timer")

    def __init__(self, name: str, loaded: LoadedT, on_closed: Callable[[], object] | None) -> None:
        self.name = name
        self.loaded = loaded
        self.on_closed = on_closed
        self.timer: Timer | None = None


class Closes(Generic[LoadedT]):
    """The closes that run now."""

    def __init__(self, close: Callable[[LoadedT], object], clock: Clock, executor: Executor) -> None:
        """Start without any.

        Args:
            close: Frees what a version holds, in a loader thread; ``Loader.close``.
            clock: Time, and calls in the serving thread.
            executor: The loader threads.
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
        """Close it in a loader thread; as soon as there is one.

        Args:
            name: The model and the version, for the log.
            loaded: What is to be closed.
            limit_seconds: How long ``on_closed`` waits for that at most.
            on_closed: Called when it is closed, or is waited for no longer.
        """
        one = _Close(name, loaded, on_closed)
        if limit_seconds is not None:
            one.timer = self._clock.call_later(limit_seconds, self._abandon, one, limit_seconds)
        self._start(one)

    def here(self, name: str, loaded: LoadedT) -> None:
        """Close it in this thread, a loader's; what goes wrong is logged."""
        try:
            self._close(loaded)
        except BaseException:  # noqa: BLE001  # The boundary: a model may raise anything, and nobody waits.
            _log.exception("%s could not be closed in good order", name)

    def _start(self, one: _Close[LoadedT]) -> None:
        try:
            self._executor.submit(self._run, one)
        except NO_THREAD as error:
            _log.warning("%s cannot be closed now, but soon: %s", one.name, error)
            self._clock.call_later(_RETRY_SECONDS, self._start, one)

    def _run(self, one: _Close[LoadedT]) -> None:
        """In a loader thread."""
        self.here(one.name, one.loaded)
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._clock.call_soon_threadsafe(self._end, one)

    def _abandon(self, one: _Close[LoadedT], limit_seconds: float) -> None:
        limit = f"versions.load_timeout_seconds = {limit_seconds:g}"
        _log.warning(
            "%s: closing took longer than %s; it is waited for no longer, and keeps what it holds until then",
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
