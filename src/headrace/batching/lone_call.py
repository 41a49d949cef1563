"""Answer calls in the serving thread without awaiting if no other call would share their batch.

For a lone caller, the event loop (a future, a scheduled callback, a woken task) costs more than everything
else except the model. Whether a call is alone is not known before the loop iteration ends, so it is predicted
from earlier iterations. If only one task called in each of the last ones, the next calls are answered at
once, up to a few per iteration. As soon as two tasks call in one iteration, all calls queue again and share
batches.
"""

from __future__ import annotations

import asyncio

from headrace.base.clock import Clock
from headrace.batching.batcher import Batcher
from headrace.batching.calling_threads import WaitingRequest
from headrace.batching.request import Answer
from headrace.model.servable import CheckedInputs

_TURNS_ALONE = 2
"""Loop iterations with one calling task before the next caller is assumed to be alone."""

_MOST_CALLS = 8
"""The most calls answered at once in one loop iteration, so that other tasks get to run."""


class AtOnce:
    """Decides which calls are answered at once. Serving thread only."""

    __slots__ = ("_batcher", "_calls", "_clock", "_task", "_together", "_turns_alone")

    def __init__(self, batcher: Batcher, clock: Clock) -> None:
        """Begin with all calls queueing.

        Args:
            batcher: The Batcher of the calls.
            clock: The serving thread's clock.
        """
        self._batcher = batcher
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._calls = 0
        self._together = False
        self._turns_alone = 0

    def answer(self, inputs: CheckedInputs, deadline: float) -> Answer | None:
        """Answer a call of the running task now if it is alone and short; return None if it must queue.

        Args:
            inputs: Checked inputs.
            deadline: Deadline in seconds on the monotonic clock.

        Raises:
            HeadraceError: The request was refused or failed.
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
