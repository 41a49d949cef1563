"""The Batcher of threads that call: whoever holds the turn runs it; see ``callers``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from headrace.batching.batch import Batch
from headrace.batching.batcher import Batcher
from headrace.batching.computing import Computing
from headrace.batching.request import Origin, Request
from headrace.batching.waiting import WaitingRequest
from headrace.config import BatchingPolicy
from headrace.errors import HeadraceError
from headrace.servable import Servable


class _Never:
    """A timer that nothing waits for."""

    def cancel(self) -> None:
        """Nothing is due."""


class Turns:
    """The Clock of a Batcher that is run in turns. Deadlines are watched by those who wait.

    Attributes:
        ready: What is to be called by who has the turn.
    """

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        """Begin with nothing to be done."""
        self.ready: deque[Callable[..., object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Have something called by who has the turn; arguments are never given."""
        self.ready.append(callback)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> _Never:
        """Forget it: see above."""
        return _Never()


class TurnsBatcher(Batcher):
    """A Batcher whose callers compute its batches.

    Attributes:
        turns: Its clock.
        given: Batches that are to be computed without the turn.
        compute: Computes one of those, without the turn.
        finish: Answers it, with the turn.
    """

    def __init__(
        self,
        servable: Servable,
        policy: BatchingPolicy,
        turns: Turns,
        instances: int,
        inline_seconds: float,
        origin: Origin,
    ) -> None:
        """Serve a Servable; the arguments are those of ``Batcher``."""
        super().__init__(
            servable, policy, turns, instances=instances, inline_seconds=inline_seconds, origin=origin
        )
        self.turns = turns
        self.given: deque[Batch] = deque()
        self._refuses = True
        self._computing = Computing(servable, policy, turns.now, origin, _is_for_this_thread)
        self.compute = self._compute = self._computing.compute
        self.finish = self._finish_in_thread

    def adopt(self, batch: Batch) -> None:
        """Go on with a batch that one before has given, and that is being computed."""
        self._running.add(batch)
        self._running_rows += batch.rows
        self.outstanding += len(batch.requests)

    def take_again(self, request: WaitingRequest) -> None:
        """Take a request that one before had taken: it is not refused."""
        self._refuses = False
        self.submit(request)
        request.enqueued = request.arrived
        self._refuses = True

    def count_gone(self, request: WaitingRequest) -> None:
        """Count a request whose thread has left before it was taken in."""
        request.enqueued = request.arrived
        self._count_unanswered(request, self._now())

    def sweep(self) -> None:
        """Let go of all whom nobody waits for any more: no timer does it, and they are in others' way."""
        self._expire()
        for lane in self._lanes.values():
            while gone := [one for one in lane.queue if not one.wanted]:
                lane.queue = deque(one for one in lane.queue if one.wanted)
                self._drop(lane, gone, self._now())
        for batch in [one for one in self.given if not one.is_wanted]:
            self.given.remove(batch)
            self.forget(batch)

    def forget(self, batch: Batch) -> None:
        """Let go of a batch that was given and that nobody waits for: it is not computed."""
        self._running.discard(batch)
        self._running_rows -= batch.rows
        for request in batch.requests:
            self._count_unanswered(request, self._now())
        self._let_go(len(batch.requests))
        if self.queued_rows and not self._scheduled:
            self._schedule()

    def _refusal(self, request: Request, now: float) -> HeadraceError | None:
        if not self._refuses:
            return None
        refusal = super()._refusal(request, now)
        if refusal is None or now < self._expiry.at + self._expiry.slack_seconds:
            return refusal
        self.sweep()
        return super()._refusal(request, now)

    def _give(self, batch: Batch) -> bool:
        self.given.append(batch)
        return True


def callers_of(batch: Batch) -> list[WaitingRequest]:
    """The requests of a batch, and those of which it has parts."""
    return [cast("WaitingRequest", getattr(request, "whole", request)) for request in batch.requests]


def _is_for_this_thread(error: BaseException) -> bool:
    """Whether an error is not the model's, but an interrupt of the thread that happens to call it."""
    if isinstance(error, SystemExit):  # a handler of SIGTERM raises it; elsewhere a model has
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt)
