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
"""

from __future__ import annotations

import _thread
import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from headrace.batching.batch import Batch
from headrace.batching.batcher import Batcher
from headrace.batching.computing import EXPIRED, Computing
from headrace.batching.cost import BatchCost
from headrace.batching.request import Answer, Origin, Request, Settlement
from headrace.batching.statistics import VersionStatistics
from headrace.config import BatchingPolicy
from headrace.errors import DeadlineExceeded, HeadraceError
from headrace.servable import CheckedInputs, Servable

_GATHER_SECONDS = 0.0002
"""How long the first who left a request waits for each one who is awake, before it takes the turn regardless.

They are about to leave a request, too, or to go; but the system may have put one of them aside.
"""

_LOOK_SECONDS = 1.0
"""A sleeper looks so often whether nobody is at work, although somebody should have woken it."""


class WaitingRequest(Request):
    """A Request whose thread sleeps until it is settled.

    Attributes:
        arrived: When the call began.
        settlement: What it ends with; None as long as that is not known.
    """

    __slots__ = ("_asleep", "_sleeping", "arrived", "settlement")

    def __init__(self, inputs: CheckedInputs, deadline: float, arrived: float) -> None:
        """Make a request of checked inputs.

        Args:
            inputs: The layout, the columns, and how many rows.
            deadline: On the monotonic clock, in seconds.
            arrived: When the call began.
        """
        self.call = None
        self.layout, self.columns, self.rows = inputs
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self.arrived = arrived
        self.settlement: Settlement | None = None
        self._asleep: _thread.LockType | None = None
        self._sleeping: dict[WaitingRequest, None] = {}

    @property
    def wanted(self) -> bool:
        """Whether its thread still waits."""
        return not self.settled

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once; see ``Request.settle``."""
        wanted = not self.settled
        self.settled = True
        self.columns = ()
        if wanted:
            self.settlement = settlement
            self.wake()
        return wanted

    def answer(self) -> Answer:
        """Its answer, once it is settled.

        Raises:
            HeadraceError: Why there is none.
        """
        settlement = self.settlement
        if type(settlement) is Answer:
            return settlement
        raise cast("HeadraceError", settlement)

    def abandon(self) -> None:
        """Its thread waits no more. Whoever is at work may be reading the columns, so they stay."""
        self.settled = True

    def expect_sleep(self, sleeping: dict[WaitingRequest, None]) -> None:
        """From now on it can be woken.

        Args:
            sleeping: Who sleeps; whoever wakes it takes it out of there.
        """
        self._sleeping = sleeping
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Wait until woken, or for some time."""
        if self._asleep is not None:
            self._asleep.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let its thread go on; twice is once."""
        if self._asleep is not None:
            self._sleeping.pop(self, None)
            try:  # noqa: SIM105 - on every request's way
                self._asleep.release()
            except RuntimeError:
                pass


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
        self._apart: set[Batch] = set()
        # A lock that knows its owner: an interrupt between taking it and noting that leaves no lock behind.
        self._turn = threading.RLock()
        self._at_work = 0
        self._batcher: _TurnsBatcher | None = None

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
        """Whether this very thread holds the turn: a model that asks itself."""
        return self._at_work == _thread.get_ident()

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
        # An interrupt comes after any call: what must not be left undone is the first one of `finally`.
        try:
            self._inside.add(request)
            if not may_enter():
                return None
            if self._awake() == 1:
                self._try_turn(request, self._answer_alone)
            if request.settlement is None:
                self._queue(request)
        finally:
            self._inside.discard(request)
            self._see_that_somebody_works()
            if self.on_idle is not None and not self._inside:
                self.on_idle()
        return request.answer()

    # --- without the turn ---

    def _awake(self) -> int:
        """How many threads are inside and run Python, or are about to."""
        return len(self._inside) - len(self._sleeping) - len(self._apart)

    def _queue(self, request: WaitingRequest) -> None:
        """Leave a request for whoever is at work, until it is settled."""
        request.expect_sleep(self._sleeping)
        patience = _LOOK_SECONDS if self._arriving else _GATHER_SECONDS * self._awake()
        try:
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
        finally:
            self._sleeping.pop(request, None)
            request.abandon()

    def _sleep(self, request: WaitingRequest, patience: float) -> None:
        left = request.deadline - time.monotonic()
        if left > 0:
            request.sleep(min(left, patience))
        elif not request.settled:
            request.settled = True
            if request.settlement is None:
                raise DeadlineExceeded(EXPIRED)

    def _see_that_somebody_works(self) -> None:
        """Wake one who sleeps, if there is something to do and nobody is awake who will see it.

        Whoever leaves calls this afterwards, and whoever has given the turn back without leaving.
        """
        while self._sleeping and self._awake() <= 0 and self._has_work():
            try:
                sleeper = next(iter(self._sleeping))
            except StopIteration:
                return
            except RuntimeError:  # somebody has come or gone in between
                continue
            sleeper.wake()
            return

    def _has_work(self) -> bool:
        batcher = self._batcher
        return bool(self._arriving or (batcher is not None and (batcher.given or batcher.turns.ready)))

    def _try_turn(self, request: WaitingRequest, work: Callable[[WaitingRequest], object]) -> None:
        """Take the turn unless somebody has it, and work."""
        took = None
        try:
            took = self._turn.acquire(blocking=False)
            if took:
                work(request)
        except BaseException:
            request.abandon()
            if took is not False:
                self._begin_anew()
            raise
        finally:
            # `_give_turn_back`, spelled out: an interrupt comes where a function begins.
            if took is not False:
                self._at_work = 0
                try:  # noqa: SIM105 - on every request's way
                    self._turn.release()
                except RuntimeError:
                    pass

    def _give_turn_back(self) -> None:
        self._at_work = 0
        try:  # noqa: SIM105 - on every request's way
            self._turn.release()
        except RuntimeError:  # an interrupt came before it was taken
            pass

    # --- with the turn ---

    def _answer_alone(self, own: WaitingRequest) -> None:
        """Answer a request that nobody has seen yet, if nothing else is there to be done."""
        self._at_work = _thread.get_ident()
        batcher = self._batcher or self._begin()
        if not self._arriving and batcher.outstanding == 0:
            batcher.submit_alone(own)

    def _work(self, own: WaitingRequest) -> None:
        """Work until a request is settled, or nothing is left to do: others compute it then."""
        self._sleeping.pop(own, None)
        while True:
            self._at_work = _thread.get_ident()
            batcher = self._batcher or self._begin()
            self._take_in(batcher)
            if own.settlement is not None:
                return
            if batcher.given:
                self._compute_aside(batcher, batcher.given.popleft())
            elif batcher.turns.ready:
                batcher.turns.ready.popleft()()
            else:
                self._sleeping[own] = None
                return

    def _take_in(self, batcher: _TurnsBatcher) -> None:
        arriving = self._arriving
        while arriving:
            request = arriving.popleft()
            batcher.submit(request)
            request.enqueued = request.arrived

    def _compute_aside(self, batcher: _TurnsBatcher, batch: Batch) -> None:
        """Compute a batch without the turn, so that others can take it."""
        try:
            self._apart.add(batch)
            self._give_turn_back()
            self._see_that_somebody_works()
            batcher.compute(batch)
        finally:
            self._apart.discard(batch)
            self._turn.acquire()
        batcher.finish(batch)

    def _begin(self) -> _TurnsBatcher:
        """Make a Batcher that goes on from what the one before has learnt and counted."""
        before = self._batcher
        batcher = _TurnsBatcher(
            self._servable, self._policy, _Turns(), self._instances, self._inline_seconds, self._origin
        )
        batcher.cost = copy.copy(before.cost if before is not None else self._learnt)
        batcher.statistics = self.statistics
        self._batcher = batcher
        return batcher

    def _begin_anew(self) -> None:
        """After an interrupt at work: all who wait are taken in again, by a Batcher that nothing befell.

        What others compute at this moment may be computed twice, and is answered once.
        """
        with self._turn:
            self._at_work = 0
            if self._batcher is not None:
                self._batcher.forget()
                self._begin()
            arriving = set(self._arriving.copy())
            left = sorted(self._inside.copy() - arriving, key=lambda request: request.arrived, reverse=True)
            self._arriving.extendleft(request for request in left if not request.settled)


class _Never:
    """A timer that nothing waits for."""

    def cancel(self) -> None:
        """Nothing is due."""


class _Turns:
    """The Clock of a Batcher that is run in turns. Deadlines are watched by those who wait."""

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.ready: deque[Callable[..., object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.ready.append(callback)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> _Never:
        return _Never()


class _TurnsBatcher(Batcher):
    """A Batcher whose callers compute its batches."""

    def __init__(
        self,
        servable: Servable,
        policy: BatchingPolicy,
        turns: _Turns,
        instances: int,
        inline_seconds: float,
        origin: Origin,
    ) -> None:
        super().__init__(
            servable, policy, turns, instances=instances, inline_seconds=inline_seconds, origin=origin
        )
        self.turns = turns
        self.given: deque[Batch] = deque()
        self._computing = Computing(servable, policy, turns.now, origin, _is_for_this_thread)
        self.compute = self._compute = self._computing.compute
        self.finish = self._finish_in_thread

    def forget(self) -> None:
        """Leave all that waits to another Batcher; what is being computed may come back here."""
        self._lanes.clear()
        self.queued_rows = 0
        self.given.clear()
        self.turns.ready.clear()

    def _give(self, batch: Batch) -> bool:
        self.given.append(batch)
        return True


def _is_for_this_thread(error: BaseException) -> bool:
    """Whether an error is not the model's, but an interrupt of the thread that happens to call it."""
    if isinstance(error, SystemExit):  # a handler of SIGTERM raises it; elsewhere a model has
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt)
