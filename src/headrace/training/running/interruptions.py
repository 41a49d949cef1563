"""Handling of Ctrl-C and SIGTERM: they end a run between two blocks, so that its progress is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

Result = TypeVar("Result")


class Interrupted(KeyboardInterrupt):
    """The run was asked to end."""


class Interruptions:
    """Signal handlers that record the first signal, and restore the previous handlers for a second one.

    Attributes:
        number: The signal received; None if there was none.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        """Create the handlers without installing them."""
        self.number: signal.Signals | None = None
        self._waiting = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def terminated(self) -> bool:
        """Whether the signal was SIGTERM."""
        return self.number is signal.SIGTERM

    def __enter__(self) -> Interruptions:
        """Install the handlers; do nothing outside the main thread, which alone receives signals."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        self._give_back()

    def wait_for(self, step: Callable[[], Result]) -> Result:
        """Run a step that may block, and that can be abandoned at any point.

        Raises:
            Interrupted: A signal was received before or during the step.
        """
        try:
            self._waiting = True
            if self.number is not None:
                raise Interrupted
            return step()
        finally:
            self._waiting = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = signal.Signals(number)
        self._give_back()
        if self._waiting:
            raise Interrupted

    def _give_back(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
