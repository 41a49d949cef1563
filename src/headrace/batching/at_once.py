"""Calls of the serving thread that are answered before they await anything: nobody would share their batch.

A lone caller pays more for the way through the event loop (a future, a call that is scheduled, a task that is
woken) than for everything else but the model. Whether a call is alone cannot be known before the turn of the
loop is over, so it is taken from the turns before: where the last ones had one task that called, a task is
answered at once, a few times, and then waits for its turn like others. The first time that two tasks call in
one turn, all wait again, and share batches.
"""

from __future__ import annotations

import asyncio

from headrace.batching.batcher import Batcher
from headrace.batching.request import Answer
from headrace.batching.waiting import WaitingRequest
from headrace.clock import Clock
from headrace.servable import CheckedInputs

_TURNS_ALONE = 2
"""So many turns had one caller before the next is taken to be alone, too."""

_MOST_CALLS = 8
"""So often a task is answered in one turn before others have theirs."""


class AtOnce:
    """Says who is answered at once. Serving thread only."""

    __slots__ = ("_batcher", "_calls", "_clock", "_task", "_together", "_turns_alone")

    def __init__(self, batcher: Batcher, clock: Clock) -> None:
        """Begin with everybody waiting.

        Args:
            batcher: Whose callers they are.
            clock: The serving thread's.
        """
        self._batcher = batcher
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._calls = 0
        self._together = False
        self._turns_alone = 0

    def answer(self, inputs: CheckedInputs, deadline: float) -> Answer | None:
        """Answer a call of the running task now, if it is alone and short; None if it has to wait.

        Args:
            inputs: Checked inputs.
            deadline: On the monotonic clock, in seconds.

        Raises:
            HeadraceError: Why there is no answer.
        """
        if not self._is_turn():
            return None
        request = WaitingRequest(inputs, deadline, self._clock.now())
        self._batcher.submit_alone(request)
        return None if request.settlement is None else request.answer()

    def _is_turn(self) -> bool:
        task = asyncio.current_task()
        if self._task is None:
            self._task = task
            self._calls = 0
            self._clock.call_soon(self._end_turn)
        elif self._task is not task:
            self._together = True
        self._calls += 1
        return (
            self._turns_alone >= _TURNS_ALONE
            and not self._together
            and self._calls <= _MOST_CALLS
            and self._batcher.outstanding == 0
        )

    def _end_turn(self) -> None:
        self._turns_alone = 0 if self._together else self._turns_alone + 1
        self._task, self._together = None, False
