"""Ctrl-C and SIGTERM for long-running verbs: the first stops at a safe point, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """A context manager that records the first SIGINT or SIGTERM; later ones have their previous effect.

    Attributes:
        event: Set by the first signal.
        number: The first signal; None if there was none.
    """

    def __init__(self) -> None:
        """Create it without handling signals yet."""
        self.event = threading.Event()
        self.number: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def interrupted(self) -> bool:
        """Whether the signal was SIGINT."""
        return self.number is signal.SIGINT

    @property
    def terminated(self) -> bool:
        """Whether the signal was SIGTERM."""
        return self.number is signal.SIGTERM

    def __enter__(self) -> Self:
        """Install the signal handlers; no effect outside the main thread, the only one that can set them."""
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous signal handlers."""
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = signal.Signals(number)
        self.event.set()
        self._give_back()

    def _give_back(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
