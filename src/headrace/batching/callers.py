"""Threads that wait for their answers have a Batcher of their own, and run it themselves.

No thread serves them. A call that finds nobody at work takes the turn, and runs the batch for all who wait.
Who finds somebody at work leaves its request and sleeps until it is answered, or woken to take the turn. The
Batcher is that of the serving thread, laws and all, and has no lock: whoever holds the turn is its serving
thread for as long. A batch that takes longer than ``inline_seconds`` is computed without the turn, as an
instance's thread would do, so that several run side by side.

Who leaves a request while others are awake goes to sleep, too: they are about to leave one or to go, and the
last of them works for all. So threads that were answered together ask together again, and nobody has to be
woken to work. One thread alone takes the turn at once.

Without the turn only this is touched, each by single steps that Python never interleaves: who is inside (a
set), who has left a request that nobody has taken in yet (a deque), who sleeps (a dict). What keeps anybody
from sleeping for ever is the order: who comes leaves its request, says that it sleeps, and only then looks
whether somebody is awake; who goes, or gives the turn back, looks afterwards whether there is work to do.
Should that fail nevertheless, because somebody is put aside or interrupted at the wrong moment, sleepers look
for themselves now and then.

An interrupt (a signal's handler raises) may come between any two steps. So nothing here cleans up where it
stands: whatever a call has begun is undone in one place, at the end of ``answer``, which can be interrupted
itself, and begun again. The Batcher of a call that was interrupted at work is spoiled: who has the turn next
begins anew, with all whom that one had taken in.
"""

from __future__ import annotations

import _thread
import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from headrace.batching.batch import Batch, headrace_error
from headrace.batching.computing import EXPIRED
from headrace.batching.cost import BatchCost
from headrace.batching.request import Answer, Origin, Request
from headrace.batching.statistics import VersionStatistics
from headrace.batching.turns import Turns, TurnsBatcher, callers_of
from headrace.batching.waiting import WaitingRequest
from headrace.config import BatchingPolicy
from headrace.errors import DeadlineExceeded
from headrace.servable import Servable

_GATHER_SECONDS = 0.0002
"""How long the first who left a request waits for each one who is awake, before it takes the turn regardless.

They are about to leave a request, too, or to go; but the system may have put one of them aside.
"""

_LOOK_SECONDS = 1.0
"""A sleeper looks so often whether nobody is at work, although somebody should have woken it."""

_ATTEMPTS = range(100)
"""So often is begun to clear up after an interrupt, if more interrupts come meanwhile."""


class Callers:
    """Merges the requests of threads that wait.

    Attributes:
        statistics: What their Batcher has done.
        on_idle: Called when the last thread has left, in that thread; perhaps more than once.
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
            servable: What answers the batches.
            policy: The limits, without a wait for more requests.
            learnt: What is known of its batches' cost when the first thread comes.
            instances: How many threads may compute at once what takes longer than ``inline_seconds``.
            inline_seconds: Batches predicted to take less are computed with the turn held.
            origin: What the answers say who gave them.
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
        # A lock that knows its owner: whose it is can be told after an interrupt, too.
        self._turn = threading.RLock()
        self._at_work = 0
        self._batcher: TurnsBatcher | None = None
        self._spoiled = False

    @property
    def outstanding(self) -> int:
        """How many threads are inside."""
        return len(self._inside)

    @property
    def queued_rows(self) -> int:
        """Rows in the queue."""
        return self._batcher.queued_rows if self._batcher is not None else 0

    @property
    def works_here(self) -> bool:
        """Whether this very thread computes a batch, with the turn or aside: a model that asks itself."""
        thread = _thread.get_ident()
        return self._at_work == thread or thread in self._apart

    def answer(self, request: WaitingRequest, may_enter: Callable[[], bool]) -> Answer | None:
        """Answer a request, in the thread that waits for it.

        Args:
            request: New, and used once.
            may_enter: Asked when the thread is inside: whether what it got is still what serves. Whoever
                takes that out of service looks afterwards whether somebody is inside: one of both notices.

        Returns:
            The answer; None if it may not enter.

        Raises:
            HeadraceError: Why there is no answer.
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
            # All but `_leave` needs no frame of Python's: there may be none left (RecursionError).
            for _ in _ATTEMPTS:
                try:
                    request.settled = True  # its columns stay: whoever is at work may be reading them
                    self._sleeping.pop(request, None)
                    self._apart.discard(_thread.get_ident())
                    if request in self._aside or self._at_work == _thread.get_ident():
                        self._turn.acquire()
                        self._spoiled = True
                        self._aside.pop(request, None)
                        self._at_work = 0
                    try:
                        while True:  # it may have been taken more than once by now
                            self._turn.release()
                    except RuntimeError:  # it is another's, or nobody's
                        pass
                    self._inside.discard(request)
                    self._leave(request)
                    break
                except BaseException:  # noqa: BLE001 - one more interrupt: the first goes on its way
                    continue
            raise
        return request.answer() if entered else None

    # --- without the turn ---

    def _awake(self) -> int:
        """How many threads are inside and run Python, or are about to."""
        return len(self._inside) - len(self._sleeping) - len(self._apart)

    def _queue(self, request: WaitingRequest) -> None:
        """Leave a request for whoever is at work, until it is settled."""
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
        """Wake one who sleeps, if there is something to do and nobody is awake who will see it.

        Whoever leaves calls this afterwards, and whoever has given the turn back without leaving.
        """
        while self._sleeping and self._awake() <= 0 and self._has_work():
            try:
                sleeper = self._who_works_next()
            except (IndexError, RuntimeError, StopIteration):  # somebody has come or gone in between
                continue
            sleeper.wake()
            return

    def _who_works_next(self) -> WaitingRequest:
        """Whose request is computed next, so that nobody computes for strangers; else who came last."""
        batcher = self._batcher
        if batcher is not None and batcher.given:
            found = self._asleep_for(batcher.given[0])
            if found is not None:
                return found
        elif self._arriving and self._arriving[0] in self._sleeping:
            return self._arriving[0]
        return next(reversed(self._sleeping))

    def _asleep_for(self, batch: Batch) -> WaitingRequest | None:
        """One who sleeps until a batch is computed, if there is one."""
        for caller in callers_of(batch):
            if caller in self._sleeping:
                return caller
        return None

    def _has_work(self) -> bool:
        batcher = self._batcher
        if self._spoiled or self._arriving:
            return True
        return batcher is not None and bool(batcher.given or batcher.turns.ready)

    def _try_turn(self, request: WaitingRequest, work: Callable[[WaitingRequest], object]) -> None:
        """Take the turn unless somebody has it, and work."""
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
        """Forget those whom the last one to leave has left behind: they have left before it."""
        self._at_work = _thread.get_ident()
        if self._spoiled:
            self._begin_anew()
        else:
            cast("TurnsBatcher", self._batcher).sweep()

    # --- after an interrupt ---

    def _begin_anew(self) -> None:
        """With the turn: go on with a Batcher that nothing befell, and all whom the one before had taken in.

        They were admitted then, so they are not refused now. What other threads compute at this moment is
        theirs, and goes on.
        """
        while not all(map(self._take_again, self._left_by_the_one_before())):
            pass  # the one that failed has heard of it, and is not among them any more
        self._spoiled = False

    def _left_by_the_one_before(self) -> list[WaitingRequest]:
        """Make the new Batcher, and say whom it has to take in, in order."""
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
        """Answer a request that nobody has seen yet, if nothing else is there to be done."""
        self._at_work = _thread.get_ident()
        batcher = self._batcher or self._begin()
        if not self._arriving and batcher.outstanding == 0 and not self._spoiled:
            batcher.submit_alone(own)

    def _work(self, own: WaitingRequest) -> None:
        """Work until a request is settled, or nothing is left to do: others compute it then."""
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
        """Take the batch that a caller computes, if any: its own, else one whose callers are awake."""
        for batch in given:
            if own in callers_of(batch):
                given.remove(batch)
                return batch
        return given.popleft() if given and self._asleep_for(given[0]) is None else None

    def _take_in(self) -> TurnsBatcher:
        """Let the Batcher have what has arrived."""
        arriving, batcher = self._arriving, cast("TurnsBatcher", self._batcher)
        while arriving:
            request = arriving[0]
            request.taken_in = True  # first: what is in neither place would be forgotten
            arriving.popleft()
            if request.settled:
                batcher.count_gone(request)
                continue
            try:
                batcher.submit(request)
                request.enqueued = request.arrived
            except RecursionError:  # of the thread that happens to take it in
                raise
            except Exception as error:  # noqa: BLE001 - its own, and not that of whoever takes it in
                self._fail(request, error)
                self._begin_anew()  # who knows how far that came
                batcher = cast("TurnsBatcher", self._batcher)
        return batcher

    def _take_again(self, request: WaitingRequest) -> bool:
        try:
            cast("TurnsBatcher", self._batcher).take_again(request)
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
        compute = cast("TurnsBatcher", self._batcher).compute
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
        cast("TurnsBatcher", self._batcher).finish(batch)
        del self._aside[own]

    def _begin(self) -> TurnsBatcher:
        """Make a Batcher that goes on from what the one before has learnt and counted."""
        before = self._batcher
        batcher = TurnsBatcher(
            self._servable, self._policy, Turns(), self._instances, self._inline_seconds, self._origin
        )
        batcher.cost = copy.copy(before.cost if before is not None else self._learnt)
        batcher.statistics = self.statistics
        self._batcher = batcher
        return batcher
