"""A prediction cache, which answers repeated requests without the model.

The cache wraps the version's Batcher directly, and defaults wrap the cache, so default answers are never
cached. Inputs from an archive are looked up behind the cache by keys that are part of the request. Cached
answers of such a model may therefore be outdated, and its settings must limit their age.

Equal requests that arrive while the first is queued or computed wait for its answer. One shared request to
the Batcher is computed for all of them. It is wanted as long as one of them waits, and its deadline is the
latest of theirs; each also keeps its own deadline. It has the caller and the priority of the first, so an
equal request of a higher priority gets a shared request of its own. Errors are not cached: all waiting
requests get the error, and the next equal request is computed again. If the shared request misses its
deadline, it is submitted again for waiting requests with later deadlines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.access.caller import ASKING
from headrace.base.clock import Clock, Timer
from headrace.base.errors import DeadlineExceeded, HeadraceError, Refused
from headrace.batching.cancelling import EXPIRED
from headrace.batching.request import Answer, BatchOutputs, Origin, Request, Settlement, Timings
from headrace.batching.statistics import VersionStatistics
from headrace.config import CachePolicy
from headrace.predictors.answer_cache import Answers, Kept, Key, copied, key_of, own_columns, size_of
from headrace.predictors.predictor import Predictor, PriorityOnly, priority_of

_MOST_AT_ONCE = 8
"""The most requests answered within ``submit`` in one loop iteration, so that other tasks get to run."""


class Cached:
    """Predictor that wraps another one and caches its answers."""

    def __init__(
        self,
        around: Predictor,
        policy: CachePolicy,
        *,
        origin: Origin,
        statistics: VersionStatistics,
        clock: Clock,
        most_waiting_rows: int,
    ) -> None:
        """Wrap a Predictor.

        Args:
            around: The wrapped Predictor.
            policy: Size of the cache and lifetime of its answers.
            origin: The Origin of the model's answers; repeated ones are marked as cached.
            statistics: Counts the requests answered without the Predictor.
            clock: The serving thread's clock.
            most_waiting_rows: The most rows that may wait for answers to equal requests; further requests go
                to the Predictor.
        """
        self._around = around
        self._answers = Answers(policy.size_bytes)
        self._seconds = policy.seconds or math.inf
        self._origin = origin._replace(is_cached=True)
        self._statistics = statistics
        self._clock = clock
        self._most_waiting_rows = most_waiting_rows
        self._waiting_rows = 0
        self._shared_requests: dict[Key, _Shared] = {}
        self._answered_in_iteration = 0
        self._postponed: list[tuple[Request, Answer]] = []

    @property
    def held_bytes(self) -> int:
        """Size of the cached answers with their keys in bytes."""
        return self._answers.held_bytes

    def submit(self, request: Request) -> None:
        """Submit a request, or refuse it at once; see ``Predictor``."""
        now = self._clock.now()
        if request.deadline <= now:
            self._around.submit(request)  # which refuses it
            return
        statistics = self._statistics
        key = key_of(request, self._answers.most_key_bytes)
        if key is None:
            statistics.cache_misses += 1
            self._around.submit(request)
            return
        request.enqueued = now
        kept = self._answers.find(key, now)
        if kept is not None:
            statistics.cache_hits += 1
            self._repeat(request, kept, now)
            return
        request.asker = ASKING.get().name  # a shared request may be submitted again in another call's context
        shared = self._shared_requests.get(key)
        if shared is None or priority_of(request) < priority_of(shared):
            statistics.cache_misses += 1
            self._submit_shared(key, [request])
        elif self._waiting_rows + request.rows > self._most_waiting_rows:
            statistics.cache_misses += 1
            self._around.submit(request)
        else:
            statistics.cache_joined += 1
            self._waiting_rows += request.rows
            shared.join(request)

    def _submit_shared(self, key: Key, waiting: Sequence[Request]) -> None:
        shared = self._shared_requests[key] = _Shared(self, key, waiting)
        self._waiting_rows += shared.rows * shared.joined
        self._around.submit(shared)

    # --- cached answers ---

    def _repeat(self, request: Request, kept: Kept, now: float) -> None:
        outputs = BatchOutputs(kept.tensors, self._origin)
        answer = Answer(outputs, 0, request.rows, Timings(now, request.rows, 1))
        if self._answered_in_iteration >= _MOST_AT_ONCE:
            self._postponed.append((request, answer))
            return
        if not self._answered_in_iteration:
            self._clock.call_soon(self._begin_iteration)
        self._answered_in_iteration += 1
        self._give(request, answer, now)

    def _begin_iteration(self) -> None:
        due, self._postponed, self._answered_in_iteration = self._postponed, [], 0
        now = self._clock.now()
        for request, answer in due:
            self._give(request, answer, now)

    # --- shared requests ---

    def answered(self, key: Key, answer: Answer, waiting: int) -> Answer:
        """Cache an answer, if it is small enough.

        Args:
            key: The cache key.
            answer: The Predictor's answer.
            waiting: Number of requests that wait for it.

        Returns:
            The answer for the waiting requests. If it is cached or shared, its rows are read-only copies,
            which keep no batch in memory.
        """
        size_bytes = size_of(key, answer)
        is_kept = self._answers.takes(size_bytes)
        if not is_kept and waiting <= 1:
            return answer
        tensors = copied(answer)
        if is_kept:
            self._answers.keep(key, Kept(tensors, size_bytes, self._clock.now() + self._seconds))
        return Answer(BatchOutputs(tensors, answer.origin), 0, answer.rows, answer.timings)

    def settle(self, waiting: Sequence[Request], settlement: Settlement) -> bool:
        """Settle all waiting requests; the Predictor itself counts one of them.

        Returns:
            Whether any request was still wanted.
        """
        if len(waiting) == 1:  # the most common case
            return waiting[0].settle(settlement)
        wanted = [request for request in waiting if request.wanted]
        for request in waiting:
            if not request.wanted:
                request.settle(settlement)  # nobody waits, but the request must end
        self._statistics.cancelled += max(0, len(waiting) - max(1, len(wanted)))
        now = self._clock.now()
        for place, request in enumerate(wanted):
            if not place:
                request.settle(settlement)
            elif isinstance(settlement, Answer):
                self._give(request, settlement, now)
            else:
                self._refuse(request, settlement, now)
        return bool(wanted)

    def _give(self, request: Request, answer: Answer, now: float) -> None:
        """Answer a request that the Predictor does not count, and count it."""
        if request.settle(answer):
            self._statistics.count_repeated(request, now)
        else:
            self._statistics.cancelled += 1

    def _refuse(self, request: Request, error: HeadraceError, now: float) -> None:
        """Settle a request that the Predictor does not count with an error, and count it."""
        if not request.settle(error):
            self._statistics.cancelled += 1
        elif isinstance(error, Refused):
            self._statistics.refused += 1
        else:
            self._statistics.count_failed(request, now)

    def at(self, deadline: float, callback: Callable[[Request], object], request: Request) -> Timer:
        """Call a function with a request when its deadline has passed."""
        return self._clock.call_later(max(deadline - self._clock.now(), 0.0), callback, request)

    def expire(self, request: Request) -> None:
        """Settle a waiting request whose own deadline has passed; the shared request continues."""
        self._refuse(request, DeadlineExceeded(EXPIRED), self._clock.now())

    def ended(self, shared: _Shared, settlement: Settlement) -> bool:
        """Settle the requests that wait for a shared one; if it expired, submit it again for those in time.

        Returns:
            Whether any settled request was still wanted.
        """
        key, waiting = shared.key, list(shared.waiting)
        if self._shared_requests.get(key) is shared:
            del self._shared_requests[key]
        self._waiting_rows -= shared.rows * shared.joined
        if isinstance(settlement, Answer):
            return self.settle(waiting, self.answered(key, settlement, len(waiting)))
        if not isinstance(settlement, DeadlineExceeded):
            return self.settle(waiting, settlement)
        now = self._clock.now()
        in_time = [request for request in waiting if request.deadline > now and request.wanted]
        was_wanted = self.settle(
            [one for one in waiting if one.deadline <= now or not one.wanted], settlement
        )
        if in_time:
            self._submit_shared(key, in_time)
        return was_wanted


class _Shared(Request):
    """The request that is computed on behalf of all equal requests that wait for its answer."""

    __slots__ = ("_around", "_held", "joined", "key", "waiting")

    def __init__(self, around: Cached, key: Key, waiting: Sequence[Request]) -> None:
        latest = waiting[0]
        for request in waiting:
            if request.deadline > latest.deadline:
                latest = request
        self.layout, self.rows = latest.layout, latest.rows
        self.columns = own_columns(key, latest.columns)
        self.deadline = latest.deadline
        self.settled = False
        self.text_bytes = 0
        self.call = PriorityOnly.of(min(waiting, key=priority_of).call)
        self.asker = latest.asker
        self.key = key
        self.joined = len(waiting) - 1
        self._around = around
        # Waiting requests, with a timer for those whose deadline is earlier than the shared one.
        self.waiting: dict[Request, Timer | None] = {}
        self._held: list[Request] = []
        for request in waiting:
            self._wait(request)

    @property
    def wanted(self) -> bool:
        """Whether a request still waits for the answer."""
        if not self.settled:
            for request in self.waiting:
                if request.wanted:
                    return True
        return False

    def join(self, request: Request) -> None:
        """Add a waiting request."""
        self.joined += 1
        if request.deadline > self.deadline:
            self.deadline, held, self._held = request.deadline, self._held, []
            for other in held:
                if other in self.waiting:
                    self._wait(other)
        self._wait(request)

    def _wait(self, request: Request) -> None:
        if request.deadline < self.deadline:
            self.waiting[request] = self._around.at(request.deadline, self._expire, request)
        else:
            self.waiting[request] = None
            self._held.append(request)

    def _expire(self, request: Request) -> None:
        del self.waiting[request]
        self._around.expire(request)

    def settle(self, settlement: Settlement) -> bool:
        """Settle all waiting requests, once; see ``Request.settle``."""
        if self.settled:  # expired while it was computed: nobody waits, but a later request may use it
            if isinstance(settlement, Answer):
                self._around.answered(self.key, settlement, 0)
            return False
        self.settled = True
        self.columns = ()
        for timer in self.waiting.values():
            if timer is not None:
                timer.cancel()
        return self._around.ended(self, settlement)
