"""The Batcher of calling threads, run by the thread that holds the turn; see ``calling_threads``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from headrace.base.errors import HeadraceError
from headrace.batching.batch_queue import Batch
from headrace.batching.batcher import Batcher
from headrace.batching.blocking_request import WaitingRequest
from headrace.batching.compute import Computing
from headrace.batching.request import Origin, Request
from headrace.config import BatchingPolicy
from headrace.model.servable import Servable


class _Never:
    """A timer that never fires."""

    def cancel(self) -> None:
        """Do nothing."""


class Turns:
    """The Clock of a Batcher that calling threads run in turns. It has no timers: threads watch deadlines.

    Attributes:
        ready: Callbacks to be run by the thread that holds the turn.
    """

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        """Begin without callbacks."""
        self.ready: deque[Callable[..., object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Queue a callback for the thread that holds the turn; no caller passes arguments."""
        self.ready.append(callback)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> _Never:
        """Drop the callback: waiting threads watch their deadlines themselves."""
        return _Never()


class TurnsBatcher(Batcher):
    """A Batcher whose batches are computed by calling threads.

    Attributes:
        turns: Its clock.
        given: Batches to be computed without the turn.
        compute: Computes such a batch; called without the turn.
        finish: Answers the requests of such a batch; called with the turn.
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
        """Serve a Servable; see ``Batcher`` for the arguments."""
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
        """Take over a batch of an earlier Batcher that is being computed."""
        self._running.add(batch)
        self._running_rows += batch.rows
        self.outstanding += len(batch.requests)

    def take_again(self, request: WaitingRequest) -> None:
        """Enqueue a request that an earlier Batcher had admitted, without refusing it."""
        self._refuses = False
        self.submit(request)
        request.enqueued = request.arrived
        self._refuses = True

    def count_gone(self, request: WaitingRequest) -> None:
        """Count a request whose thread left before it was enqueued."""
        request.enqueued = request.arrived
        self._count_unanswered(request, self._now())

    def sweep(self) -> None:
        """Drop all expired and abandoned requests, which no timer does and which would delay others."""
        self._expire()
        for lane in self._lanes.values():
            while gone := [one for one in lane.queue if not one.wanted]:
                lane.queue = deque(one for one in lane.queue if one.wanted)
                self._drop(lane, gone, self._now())
        for batch in [one for one in self.given if not one.is_wanted]:
            self.given.remove(batch)
            self.forget(batch)

    def forget(self, batch: Batch) -> None:
        """Drop a given batch that nobody waits for, without computing it."""
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
    """Return the requests of a batch; for a part, the whole request."""
    return [cast("WaitingRequest", getattr(request, "whole", request)) for request in batch.requests]


def _is_for_this_thread(error: BaseException) -> bool:
    """Return whether an error is an interrupt of the calling thread rather than the model's error."""
    if isinstance(error, SystemExit):  # in the main thread a SIGTERM handler may raise it, elsewhere a model
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt)
