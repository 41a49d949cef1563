# Longer than 500 lines: an interrupt may come between any two steps here, so they are read together.
"""Batching for threads that block until their answers are ready; they run a Batcher of their own.

No dedicated thread serves them. The *turn* is the lock that a thread holds while it runs the Batcher. A
thread that finds the turn free takes it and runs batches for all waiting threads. Otherwise it leaves its
request and sleeps until it is answered, or until it is woken to take the turn. The Batcher is the serving
thread's class with the same laws. It needs no lock of its own, because the holder of the turn acts as its
serving thread. A batch predicted to take longer than ``inline_seconds`` is computed without the turn, as an
instance's thread would do, so several can run concurrently.

A thread that leaves its request goes to sleep if others are awake, because they are about to leave a request
or to return, and the last of them works for all. Threads that were answered together thus call together
again, and none has to be woken to do the work. A lone thread takes the turn at once.

Without the turn, threads change only four objects, each by atomic operations. These are the sets of
requests inside and of threads that compute without the turn, the deque of requests not taken in yet, and
the dict of sleepers. The order of steps prevents lost wakeups. A thread that arrives leaves its request,
records that it sleeps, and only then checks whether another thread is awake. A thread that is about to
return, or that has released the turn, checks afterwards whether there is work. If this still fails, because
a thread is suspended or interrupted at a critical point, sleepers wake periodically and check.

An interrupt (an exception raised by a signal handler) may come between any two steps. All clean-up is
therefore in one place, at the end of ``answer``, which can be interrupted itself and then starts again. A
Batcher that was interrupted at work is discarded: the next thread with the turn replaces it and takes over
all admitted requests.
"""

from __future__ import annotations

import _thread
import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from headrace.base.errors import DeadlineExceeded, HeadraceError
from headrace.batching.batch_queue import Batch, headrace_error
from headrace.batching.batcher import Batcher
from headrace.batching.cancelling import EXPIRED
from headrace.batching.compute import Computing
from headrace.batching.cost import BatchCost
from headrace.batching.request import Answer, Origin, Request, Settlement
from headrace.batching.statistics import VersionStatistics
from headrace.config import BatchingPolicy
from headrace.model.servable import CheckedInputs, Servable

_GATHER_SECONDS = 0.0002
"""Time per awake thread that the first thread with a queued request waits before it takes the turn.

The others are about to leave a request or to return, but the system may have suspended one of them.
"""

_LOOK_SECONDS = 1.0
"""Longest interval at which a sleeper checks whether a wakeup was lost."""

_ATTEMPTS = range(100)
"""Attempts to clean up after an interrupt, in case further interrupts come meanwhile."""


class WaitingRequest(Request):
    """A Request whose thread sleeps until it is settled.

    Attributes:
        arrived: Start of the call on the monotonic clock.
        settlement: The answer or the error; None until settled.
        taken_in: Whether a thread that holds the turn has taken it over.
    """

    __slots__ = ("_asleep", "_sleeping", "arrived", "settlement", "taken_in")

    def __init__(self, inputs: CheckedInputs, deadline: float, arrived: float) -> None:
        """Make a request of checked inputs.

        Args:
            inputs: The layout, the columns and the number of rows.
            deadline: Deadline in seconds on the monotonic clock.
            arrived: Start of the call, likewise.
        """
        self.call = None
        self.layout, self.columns, self.rows = inputs
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self.arrived = arrived
        self.settlement: Settlement | None = None
        self.taken_in = False
        self._asleep: _thread.LockType | None = None
        self._sleeping: dict[WaitingRequest, None] = {}

    @property
    def wanted(self) -> bool:
        """Whether its thread still waits for the answer."""
        return not self.settled

    def settle(self, settlement: Settlement) -> bool:
        """Settle the request, once; see ``Request.settle``.

        The order of steps matters if an interrupt comes between them. Either the request is not settled yet,
        and can be, or its settlement is set and only ``tell`` is needed.
        """
        if self.settled:
            self.columns = ()
            return False
        self.settlement = settlement
        self.settled = True
        self.columns = ()
        if self._asleep is not None:
            self.wake()
        return True

    def tell(self) -> None:
        """Notify its thread of the settlement; idempotent."""
        self.settled = True
        self.columns = ()
        self.wake()

    def answer(self) -> Answer:
        """Return the answer of a settled request.

        Raises:
            HeadraceError: The request was settled with an error.
        """
        settlement = self.settlement
        if isinstance(settlement, Answer):
            return settlement
        raise cast("HeadraceError", settlement)

    def expect_sleep(self, sleeping: dict[WaitingRequest, None]) -> None:
        """Make the request wakeable from now on.

        Args:
            sleeping: Requests whose threads sleep; ``wake`` removes this one.
        """
        self._sleeping = sleeping
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep until woken, or until a timeout in seconds."""
        if self._asleep is not None:
            self._asleep.acquire(timeout=seconds)

    def wake(self) -> None:
        """Wake its thread; idempotent."""
        if self._asleep is not None:
            self._sleeping.pop(self, None)
            try:  # noqa: SIM105 - runs for every request
                self._asleep.release()
            except RuntimeError:
                pass


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


class _TurnsBatcher(Batcher):
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


class Callers:
    """Merges the requests of threads that block until they are answered.

    Attributes:
        statistics: Statistics of their Batcher.
        on_idle: Called in the last thread to leave; may be called more than once.
    """

    def __init__(
        self,
        servable: Servable,
        policy: BatchingPolicy,
        learnt: BatchCost,
        *,
        instances: int,
        inline_seconds: float,
        origin: Origin,
    ) -> None:
        """Serve a Servable.

        Args:
            servable: The Servable that computes the batches.
            policy: The limits, without a wait for more requests.
            learnt: Initial cost model of the batches.
            instances: The most threads that may compute batches without the turn concurrently.
            inline_seconds: Batches predicted to take less are computed with the turn held.
            origin: The Origin of the answers.
        """
        self.statistics = VersionStatistics()
        self.on_idle: Callable[[], object] | None = None
        self._servable = servable
        self._policy = policy
        self._learnt = learnt
        self._instances = instances
        self._inline_seconds = inline_seconds
        self._origin = origin
        self._inside: set[WaitingRequest] = set()
        self._arriving: deque[WaitingRequest] = deque()
        self._sleeping: dict[WaitingRequest, None] = {}
        self._apart: set[int] = set()
        self._aside: dict[WaitingRequest, Batch] = {}
        # An RLock knows its owner, so after an interrupt a thread can tell whether it holds the turn.
        self._turn = threading.RLock()
        self._at_work = 0
        self._batcher: _TurnsBatcher | None = None
        self._spoiled = False

    @property
    def outstanding(self) -> int:
        """Number of threads inside ``answer``."""
        return len(self._inside)

    @property
    def queued_rows(self) -> int:
        """Number of rows in the queue."""
        return self._batcher.queued_rows if self._batcher is not None else 0

    @property
    def works_here(self) -> bool:
        """Whether the running thread is computing a batch, so that the model calls itself."""
        thread = _thread.get_ident()
        return self._at_work == thread or thread in self._apart

    def answer(self, request: WaitingRequest, may_enter: Callable[[], bool]) -> Answer | None:
        """Answer a request, in the thread that waits for it.

        Args:
            request: A new request, used once.
            may_enter: Called once the thread counts as inside; returns whether this version still serves. A
                version is taken out of service before its ``outstanding`` is checked, so no user is missed.

        Returns:
            The answer; None if ``may_enter`` returned False.

        Raises:
            HeadraceError: The request was refused or failed.
        """
        entered = False
        try:
            self._inside.add(request)
            if may_enter():
                entered = True
                if self._awake() == 1:
                    self._try_turn(request, self._answer_alone)
                if request.settlement is None:
                    self._queue(request)
            self._leave(request)
        except BaseException:
            # Nothing but `_leave` needs a Python frame: there may be none left (RecursionError).
            for _ in _ATTEMPTS:
                try:
                    request.settled = True  # keep its columns: a working thread may be reading them
                    self._sleeping.pop(request, None)
                    self._apart.discard(_thread.get_ident())
                    if request in self._aside or self._at_work == _thread.get_ident():
                        self._turn.acquire()
                        self._spoiled = True
                        self._aside.pop(request, None)
                        self._at_work = 0
                    try:
                        while True:  # it may have been acquired more than once by now
                            self._turn.release()
                    except RuntimeError:  # held by another thread, or not at all
                        pass
                    self._inside.discard(request)
                    self._leave(request)
                    break
                except BaseException:  # noqa: BLE001 - a further interrupt; the first one propagates
                    continue
            raise
        return request.answer() if entered else None

    # --- without the turn ---

    def _awake(self) -> int:
        """Return the number of threads inside that run Python code, or are about to."""
        return len(self._inside) - len(self._sleeping) - len(self._apart)

    def _queue(self, request: WaitingRequest) -> None:
        """Leave a request to the working threads and sleep, or take the turn, until it is settled."""
        request.expect_sleep(self._sleeping)
        patience = _LOOK_SECONDS if self._arriving else _GATHER_SECONDS * max(0, self._awake())
        self._arriving.append(request)
        self._sleeping[request] = None
        if self._awake() == 0:
            self._try_turn(request, self._work)
        while request.settlement is None:
            self._see_that_somebody_works()
            self._sleep(request, patience)
            if request.settlement is None:
                self._sleeping[request] = None
                self._try_turn(request, self._work)
            patience = min(2 * patience, _LOOK_SECONDS)
        self._sleeping.pop(request, None)

    def _sleep(self, request: WaitingRequest, patience: float) -> None:
        left = request.deadline - time.monotonic()
        if left > 0:
            request.sleep(min(left, patience))
        else:
            request.settled = True
            if request.settlement is None:
                request.settlement = DeadlineExceeded(EXPIRED)

    def _see_that_somebody_works(self) -> None:
        """Wake a sleeper if there is work to do and no thread is awake that will notice it.

        Called by a thread that has left, has released the turn, or is about to sleep.
        """
        while self._sleeping and self._awake() <= 0 and self._has_work():
            try:
                sleeper = self._who_works_next()
            except (IndexError, RuntimeError, StopIteration):  # another thread has changed them in between
                continue
            sleeper.wake()
            return

    def _who_works_next(self) -> WaitingRequest:
        """Return the sleeper whose request is next, so that it computes its own; else the latest sleeper."""
        batcher = self._batcher
        if batcher is not None and batcher.given:
            found = self._asleep_for(batcher.given[0])
            if found is not None:
                return found
        elif self._arriving and self._arriving[0] in self._sleeping:
            return self._arriving[0]
        return next(reversed(self._sleeping))

    def _asleep_for(self, batch: Batch) -> WaitingRequest | None:
        """Return a sleeper that waits for a batch, if there is one."""
        for caller in _callers_of(batch):
            if caller in self._sleeping:
                return caller
        return None

    def _has_work(self) -> bool:
        batcher = self._batcher
        if self._spoiled or self._arriving:
            return True
        return batcher is not None and bool(batcher.given or batcher.turns.ready)

    def _try_turn(self, request: WaitingRequest, work: Callable[[WaitingRequest], object]) -> None:
        """Take the turn and work, unless another thread holds it."""
        if self._turn.acquire(blocking=False):
            work(request)
            self._at_work = 0
            self._turn.release()

    def _leave(self, request: WaitingRequest) -> None:
        self._inside.discard(request)
        if not self._inside:
            batcher, on_idle = self._batcher, self.on_idle
            if batcher is not None and batcher.outstanding:
                self._try_turn(request, self._sweep)
            if on_idle is not None:
                on_idle()
        if self._sleeping:
            self._see_that_somebody_works()

    def _sweep(self, _: WaitingRequest) -> None:
        """Drop the remaining requests when the last thread leaves: their threads have left already."""
        self._at_work = _thread.get_ident()
        if self._spoiled:
            self._begin_anew()
        else:
            cast("_TurnsBatcher", self._batcher).sweep()

    # --- after an interrupt ---

    def _begin_anew(self) -> None:
        """Replace an interrupted Batcher and take over all requests that it had admitted; needs the turn.

        These requests are not refused again. Batches that other threads are computing continue there.
        """
        while not all(map(self._take_again, self._left_by_the_one_before())):
            pass  # a request that failed has been settled, so the next attempt leaves it out
        self._spoiled = False

    def _left_by_the_one_before(self) -> list[WaitingRequest]:
        """Make the new Batcher and return the requests that it must take over, in order of arrival."""
        batcher = self._begin()
        computed: set[Request] = set()
        for batch in self._aside.values():
            batcher.adopt(batch)
            computed.update(batch.requests)
        left = self._inside.copy().difference(self._arriving.copy())
        for request in left:
            if request.settlement is not None:
                request.tell()
        left = {one for one in left if one.taken_in and not one.settled and one not in computed}
        return sorted(left, key=lambda request: request.arrived)

    # --- with the turn ---

    def _answer_alone(self, own: WaitingRequest) -> None:
        """Answer a request that is not queued yet, if there is no other work."""
        self._at_work = _thread.get_ident()
        batcher = self._batcher or self._begin()
        if not self._arriving and batcher.outstanding == 0 and not self._spoiled:
            batcher.submit_alone(own)

    def _work(self, own: WaitingRequest) -> None:
        """Work until a request is settled, or until other threads compute all that is left."""
        self._at_work = _thread.get_ident()
        self._sleeping.pop(own, None)
        if self._batcher is None or self._spoiled:
            self._begin_anew()
        while True:
            batcher = self._take_in()
            if own.settlement is not None:
                return
            batch = self._batch_for(own, batcher.given)
            if batch is not None and not batch.is_wanted:
                batcher.forget(batch)
            elif batch is not None:
                self._compute_aside(own, batch)
            elif batcher.turns.ready and not batcher.given:
                batcher.turns.ready.popleft()()
            else:
                self._sleeping[own] = None
                return

    def _batch_for(self, own: WaitingRequest, given: deque[Batch]) -> Batch | None:
        """Take the batch that this thread should compute: its own, else one that no sleeper waits for."""
        for batch in given:
            if own in _callers_of(batch):
                given.remove(batch)
                return batch
        return given.popleft() if given and self._asleep_for(given[0]) is None else None

    def _take_in(self) -> _TurnsBatcher:
        """Submit the requests that have arrived to the Batcher, and return the Batcher."""
        arriving, batcher = self._arriving, cast("_TurnsBatcher", self._batcher)
        while arriving:
            request = arriving[0]
            request.taken_in = True  # before popleft: a request in neither place would be lost
            arriving.popleft()
            if request.settled:
                batcher.count_gone(request)
                continue
            try:
                batcher.submit(request)
                request.enqueued = request.arrived
            except RecursionError:  # concerns this thread, not the request
                raise
            except Exception as error:  # noqa: BLE001 - fails the request, not this thread
                self._fail(request, error)
                self._begin_anew()  # the Batcher may be in an inconsistent state
                batcher = cast("_TurnsBatcher", self._batcher)
        return batcher

    def _take_again(self, request: WaitingRequest) -> bool:
        try:
            cast("_TurnsBatcher", self._batcher).take_again(request)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return False
        return True

    def _fail(self, request: WaitingRequest, error: Exception) -> None:
        request.enqueued = request.arrived
        if request.settle(headrace_error(error)):
            self.statistics.count_failed(request, time.monotonic())

    def _compute_aside(self, own: WaitingRequest, batch: Batch) -> None:
        """Compute a batch without the turn, so that others can take it."""
        compute = cast("_TurnsBatcher", self._batcher).compute
        self._aside[own] = batch
        self._apart.add(_thread.get_ident())
        self._at_work = 0
        self._turn.release()
        self._see_that_somebody_works()
        compute(batch)
        self._apart.discard(_thread.get_ident())
        self._turn.acquire()
        self._at_work = _thread.get_ident()
        if self._spoiled:
            self._begin_anew()
        cast("_TurnsBatcher", self._batcher).finish(batch)
        del self._aside[own]

    def _begin(self) -> _TurnsBatcher:
        """Make a Batcher that takes over the cost model and the statistics of the one before."""
        before = self._batcher
        batcher = _TurnsBatcher(
            self._servable, self._policy, Turns(), self._instances, self._inline_seconds, self._origin
        )
        batcher.cost = copy.copy(before.cost if before is not None else self._learnt)
        batcher.statistics = self.statistics
        self._batcher = batcher
        return batcher


def _callers_of(batch: Batch) -> list[WaitingRequest]:
    """Return the requests of a batch; for a part, the whole request."""
    return [cast("WaitingRequest", getattr(request, "whole", request)) for request in batch.requests]


def _is_for_this_thread(error: BaseException) -> bool:
    """Return whether an error is an interrupt of the calling thread rather than the model's error."""
    if isinstance(error, SystemExit):  # in the main thread a SIGTERM handler may raise it, elsewhere a model
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt)
