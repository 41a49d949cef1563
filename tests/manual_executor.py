"""An Executor whose calls run in the test's own thread, when the test says so."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

_MOST_CALLS = 100_000


class ManualExecutor:
    """Implements ``headrace.lifecycle.loader_threads.Executor``: calls wait until ``run_one`` or ``run_all``.

    Attributes:
        no_thread: How many of the next calls find that no thread can be started.
    """

    def __init__(self) -> None:
        self.no_thread = 0
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def submit(self, call: Callable[..., object], /, *args: object) -> None:
        if self.no_thread:
            self.no_thread -= 1
            raise OSError(errno.EAGAIN, "no thread can be started")
        self._calls.append((call, args))

    submit_in_parts = submit

    def __len__(self) -> int:
        return len(self._calls)

    def run_one(self) -> None:
        call, args = self._calls.popleft()
        call(*args)

    def put_aside(self) -> Callable[[], object]:
        """Take the next call out: it hangs until what this returns is called."""
        call, args = self._calls.popleft()
        return lambda: call(*args)

    def run_all(self) -> None:
        for _ in range(_MOST_CALLS):
            if not self._calls:
                return
            self.run_one()
        raise RuntimeError(f"still not done after {_MOST_CALLS} calls")
