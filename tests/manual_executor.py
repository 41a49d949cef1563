"""An Executor whose calls run in the test's own thread, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ManualExecutor:
    """Implements ``headrace.lifecycle.background.Executor``: calls wait until ``run_one`` or ``run_all``."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def submit(self, call: Callable[..., object], /, *args: object) -> None:
        self._calls.append((call, args))

    def __len__(self) -> int:
        return len(self._calls)

    def run_one(self) -> None:
        call, args = self._calls.popleft()
        call(*args)

    def run_all(self) -> None:
        while self._calls:
            self.run_one()
