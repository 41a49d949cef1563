"""Ctrl-C and SIGTERM end a run between two blocks, so that what was learnt is saved."""

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
    """Notes the first signal; the second one does what it does without us.

    Attributes:
        number: The signal that came; None if none did.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        """Listen to nothing yet."""
        self.number: signal.Signals | None = None
        self._waiting = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def terminated(self) -> bool:
        """Whether it was SIGTERM."""
        return self.number is signal.SIGTERM

    def __enter__(self) -> Interruptions:
        """Listen; outside of the main thread, which signals never reach, nothing comes."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give signals back to whom they belonged to."""
        self._give_back()

    def wait_for(self, step: Callable[[], Result]) -> Result:
        """Do what may wait for long, and can be given up at any point.

        Raises:
            Interrupted: A signal has come, or came meanwhile.
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
