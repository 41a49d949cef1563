"""Handling of Ctrl-C and SIGTERM: they end a run between two blocks, so that its progress is saved."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from headrace.base.stop_signals import StopSignals

Result = TypeVar("Result")


class Interrupted(KeyboardInterrupt):
    """The run was asked to end."""


class Interruptions(StopSignals):
    """Signal handlers of which the first also abandons a step that blocks."""

    def __init__(self) -> None:
        """Create the handlers without installing them."""
        super().__init__()
        self._waiting = False

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
        super()._note(number, frame)
        if self._waiting:
            raise Interrupted
