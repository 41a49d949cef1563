"""Ctrl-C and SIGTERM end what goes on for long, at its next safe point; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopping:
    """Listens while it is entered.

    Attributes:
        event: Set by the first signal.
        interrupted: Whether it was Ctrl-C.
    """

    def __init__(self) -> None:
        """Listen to nothing yet."""
        self.event = threading.Event()
        self.interrupted = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        """Listen; outside of the main thread, which signals never reach, nothing comes."""
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give signals back to whom they belonged to."""
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = number == signal.SIGINT
        self.event.set()
        self._give_back()

    def _give_back(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
