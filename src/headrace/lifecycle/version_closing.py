"""Close versions in loader threads, with an optional timeout.

Invariant: ``on_closed`` is called exactly once, in the serving thread, when the version is closed or the
timeout has passed. A thread that hangs cannot be ended; it is left running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from headrace.base.clock import Clock, Timer
from headrace.lifecycle.handle import LoadedT
from headrace.lifecycle.loader_threads import NO_THREAD, Executor

_log = logging.getLogger(__name__)

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
