"""An event loop whose time passes only when nothing else can happen."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_ResultT = TypeVar("_ResultT")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sockets are real; sleeps and timeouts take no real time.

    Before time passes, everything that is ready has run and every byte that was sent on a pair of sockets has
    been read. Work in threads is not waited for.

    Attributes:
        before_time_passes: Called whenever time is about to pass; what it raises ends the loop.
        waits_left: How often time may still pass.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self.waits_left = 100_000
        self.before_time_passes: Callable[[], object] = lambda: None
        super().__init__(_Selector(self._pass))

    def time(self) -> float:
        return self._now

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as on a machine that was suspended."""
        self._now += seconds

    def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("everything waits, and no timer is set")
        self.waits_left -= 1
        if not self.waits_left:
            raise RuntimeError("still not done, and time has passed too often")
        self.before_time_passes()
        self._now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, let_pass: Callable[[float | None], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self._let_pass(timeout)
        return found


def run_virtually(coroutine: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """Run a coroutine to its end in a ``VirtualLoop``."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
