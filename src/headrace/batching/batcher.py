"""The Batcher merges concurrent Requests into calls of a Servable.

Requests cross threads only here and in ``calling_threads``.

Its laws:

1. An item is answered exactly once.
2. Within a queue, nothing overtakes a request that did not fit. With ``share_fairly``, the queue is in fair
   order rather than in order of arrival; a request's place is fixed when it is enqueued.
3. An item that nobody waits for is never run.
4. One item's failure or cancellation does not affect its neighbours: a batch that fails is retried without
   the requests whose rows the model named (``InvalidRows``), or else request by request. Only the end of
   the model's process (``ModelDied``) fails the whole batch.
5. With batching enabled, a call must return as many rows as it got, or it fails.

A Batcher belongs to the serving thread and has no lock. It applies the decisions of ``plan``. A batch
predicted to take less than ``inline_seconds`` runs in the serving thread, because handing it to another
thread would cost more than it gains. The cost must be known, the rows must not exceed ``proven_rows``, and no
texts may be long. Any other batch goes to an instance's thread and returns by one ``call_soon_threadsafe``.
Dispatching is scheduled behind the callbacks already due (``call_soon``), so requests that arrive together
share a batch, yet a lone one waits only if ``max_wait_seconds`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from headrace.base.clock import Clock, Timer
from headrace.base.errors import DeadlineExceeded, HeadraceError, Overloaded, Unavailable
from headrace.batching.admission import Caution, explanations_ahead, never_fits, queue_full, too_late
from headrace.batching.batch_queue import Batch, BatchQueue, by_age, note_failure
from headrace.batching.cancelling import EXPIRED
from headrace.batching.compute import Computing
from headrace.batching.concatenation import padded_size
from headrace.batching.cost import BatchCost
from headrace.batching.deadline_timer import Expiry
from headrace.batching.instances import Instances, pool_of
from headrace.batching.plan import BatchLimits, Release, plan
from headrace.batching.request import (
    NO_DEADLINE,
    NOBODY,
    Answer,
    BatchOutputs,
    Origin,
    Request,
    Settlement,
    Timings,
)
from headrace.batching.statistics import VersionStatistics
from headrace.batching.text_limits import has_long_texts
from headrace.config import BatchingPolicy
from headrace.model.servable import EXPLAIN_SIGNATURE, RowLayout, Servable

_LANES_KEPT = 64
_UNLOADED = "the model version was unloaded before the request was computed; try again"


class Batcher:
    """Merges the requests to one Servable.

    Attributes:
        statistics: Counts of requests, rows and batches.
        outstanding: Number of requests that are queued or running; a split one counts once per part.
        queued_rows: Number of rows in the queue, including later parts of split requests.
        cost: Predicts the duration of a batch of predictions.
        instances: The threads for batches that the serving thread does not compute itself.
        on_idle: Called once when no request is outstanding any more; reset to None before the call.
    """

    def __init__(
        self,
        servable: Servable,
        policy: BatchingPolicy,
        clock: Clock,
        *,
        instances: int,
        inline_seconds: float,
        origin: Origin = NOBODY,
    ) -> None:
        """Serve a Servable.

        Args:
            servable: The Servable that computes the batches.
            policy: The limits.
            clock: The serving thread's clock.
            instances: The most batches that may run in threads concurrently.
            inline_seconds: Batches predicted to take less may run in the serving thread; 0 for none.
            origin: The Origin of its answers.
        """
        self.statistics = VersionStatistics()
        self.cost = BatchCost()
        self._explaining = BatchCost()  # an explanation takes many times as long as a prediction
        self._explains = False
        self.outstanding = 0
        self.queued_rows = 0
        self.on_idle: Callable[[], object] | None = None
        self._signatures = servable.signatures
        self._policy = policy
        self._pads = policy.pad_variable_length
        self._clock = clock
        self._now = clock.now
        self._inline_seconds = inline_seconds
        # The short path does not wait for more requests, so a policy with a wait disables it.
        self._short_seconds = (
            0.0 if policy.max_wait_seconds else min(inline_seconds, policy.max_batch_seconds)
        )
        self._computing = Computing(servable, policy, clock.now, origin)
        self._compute = self._computing.compute
        finish = partial(clock.call_soon_threadsafe, self._finish_in_thread)
        pool = pool_of(self._computing, origin, instances, finish)
        self.instances = Instances(instances, origin, pool, clock, self._dispatch_soon)
        self._lanes: dict[object, BatchQueue] = {}
        self._most_lanes = _LANES_KEPT
        self._running: set[Batch] = set()
        self._running_rows = 0
        self._following_rows = 0  # rows of parts that are not in a lane's queue yet
        self._scheduled = False
        self._wake: Timer | None = None
        self._wake_at = math.inf
        self._expiry = Expiry(clock, self._expire)
        self._closed = False
        self._fair = False
        self._new_lane = BatchQueue
        self._caution = Caution()
        self._most_rows = policy.max_queue_rows  # of the queue; -1 once closed

    def share_fairly(self) -> None:
        """Share the queue fairly among callers; call this before the first request."""
        from headrace.batching.fair_queue import FairBatchQueue  # noqa: PLC0415 - needed with access keys only

        self._fair, self._new_lane = True, FairBatchQueue

    @property
    def waits_for_itself(self) -> bool:
        """Whether only the running thread computes batches, so that waiting for an answer would deadlock."""
        return self.instances.is_the_only_thread()

    # --- admission ---

    def submit(self, request: Request) -> None:
        """Enqueue a request, or refuse it at once; ``respond`` is called either way. Serving thread only."""
        now = request.enqueued = self._now()
        rows, deadline = request.rows, request.deadline
        if deadline != NO_DEADLINE or self.queued_rows + rows > self._most_rows:
            refusal = self._refusal(request, now)
            if refusal is not None:
                self.statistics.refused += 1
                request.settle(refusal)
                return
        layout = request.layout
        lane = self._lanes.get(layout.signature if self._pads else layout) or self._open_lane(layout)
        if rows > lane.max_rows or (lane.texts and lane.weigh(request)):
            self._put_parts(lane, request)
        else:
            lane.queue.append(request)
            self.outstanding += 1
        self.queued_rows += rows
        if deadline < self._expiry.at:
            self._expiry.watch(deadline, now)
        if not self._scheduled and len(self._running) < self.instances.allowed:
            self._schedule()

    def submit_alone(self, request: Request) -> None:
        """Answer a request at once if it is short; the caller makes sure that none is outstanding."""
        now = request.enqueued = self._now()
        lane = self._lane(request.layout)
        if not self._closed and self._is_short(lane, request, now):
            self._answer_alone(lane, request, now)

    def _refusal(self, request: Request, now: float) -> HeadraceError | None:
        """Return the error that refuses a request; None if it is admitted.

        If nothing is queued or running, only requests that have expired or do not fit the queue are refused:
        one wrong estimate of the cost could otherwise refuse every request, and would never be corrected.
        """
        if self._closed:
            return Unavailable("the model version is being unloaded; try again")
        if request.deadline <= now:
            return DeadlineExceeded(EXPIRED)
        limit = self._policy.max_queue_rows
        if request.rows > limit:
            return never_fits(request.rows, limit)
        # Rows of parts not yet enqueued bound large requests only: they delay no small one.
        lane = self._lane(request.layout)
        in_queues = self.queued_rows - self._following_rows
        waiting = self.queued_rows if request.rows > lane.max_rows else in_queues
        ahead = in_queues + self._running_rows
        if self._fair:
            ahead = lane.rows_before(request) + self._running_rows
            too_many = waiting + request.rows - limit
            if too_many > 0 and self._make_room(lane, request, too_many):
                waiting -= too_many
        if waiting + request.rows > limit:
            wait = self._wait_seconds(waiting + self._running_rows, lane)
            return queue_full(waiting, request.rows, limit, wait)
        if lane.cost is self._explaining:  # a prediction ahead takes no such time
            ahead = sum(one.rows for one in self._requests() if one.layout.signature == EXPLAIN_SIGNATURE)
        if ahead and request.deadline != NO_DEADLINE:
            aside = 0.0
            if self.instances.most == 1 and self._explaining.known and lane.cost is self.cost:
                explained, aside = explanations_ahead(lane, self._lanes.values(), self._running, now)
                ahead = max(ahead - explained, 0)  # in fair order, it has none of the queue
            wait = aside + self._caution.factor * self._wait_seconds(ahead, lane)
            return too_late(wait + lane.cost.seconds(request.rows), request.deadline - now)
        return None

    def refusal_unread(self, deadline: float) -> HeadraceError | None:
        """Return, and count, a refusal if every request with this deadline would be too late; else None."""
        ahead = self.queued_rows - self._following_rows + self._running_rows
        if not ahead or self._fair or self._closed:
            return None
        wait = self.cost.wait_seconds(ahead, self._policy.max_batch_rows, self.instances.in_use)
        refusal = too_late(self._caution.factor * wait + self.cost.seconds(1), deadline - self._now())
        self.statistics.refused += refusal is not None
        return refusal

    def _make_room(self, lane: BatchQueue, request: Request, rows: int) -> bool:
        """Refuse requests behind ``request`` in fair order to make room; return whether enough was made."""
        refused = lane.give_way(request, rows)
        if not refused:
            return False
        self.queued_rows -= sum(one.rows for one in refused)
        self.statistics.refused += len(refused)
        for one in refused:
            one.settle(Overloaded("the queue is full, and callers that requested fewer rows come first"))
        self._let_go(len(refused))
        return True

    def _wait_seconds(self, rows_ahead: int, lane: BatchQueue) -> float:
        """Return the predicted wait behind other rows, assuming that they form batches of this lane."""
        max_rows = lane.rows_within(self._policy.max_batch_seconds)
        return lane.cost.wait_seconds(rows_ahead, max_rows, self.instances.in_use)

    def _lane(self, layout: RowLayout) -> BatchQueue:
        return self._lanes.get(layout.signature if self._pads else layout) or self._open_lane(layout)

    def _open_lane(self, layout: RowLayout) -> BatchQueue:
        if len(self._lanes) >= self._most_lanes:  # clients choose the shapes: keep the number bounded
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane.queue}
            self._most_lanes = max(_LANES_KEPT, 2 * len(self._lanes))
        cost = self._explaining if layout.signature == EXPLAIN_SIGNATURE else self.cost
        lane = self._new_lane(self._signatures[layout.signature], self._policy, cost)
        self._lanes[layout.signature if self._pads else layout] = lane
        return lane

    def _put_parts(self, lane: BatchQueue, request: Request) -> None:
        parts = lane.put_parts(request, fill=self._pads)
        self.outstanding += len(parts)
        self._following_rows += request.rows - parts[0].rows

    # --- dispatching ---

    def _schedule(self) -> None:
        self._scheduled = True
        self._clock.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Release the batches that can start; return to the event loop after one that ran inline."""
        self._scheduled = False
        if self._wake is not None:
            self._wake.cancel()
            self._wake, self._wake_at = None, math.inf
        for lane in by_age(self._lanes.values()):
            while lane.queue and len(self._running) < self.instances.allowed:
                ran_inline = self._release(lane)
                if ran_inline is None:
                    break
                if ran_inline:
                    if self.queued_rows and not self._scheduled:
                        self._schedule()
                    return

    def _release(self, lane: BatchQueue) -> bool | None:
        """Apply one plan to a lane.

        Returns:
            Whether a batch ran in this thread; None if no request was released or dropped.
        """
        if self._explains and lane.cost is self._explaining:
            return None  # explanations exclude each other: a second one would only occupy an instance
        now = self._now()
        request = lane.queue[0]
        if len(lane.queue) == 1 and self._is_short(lane, request, now) and request.wanted:
            lane.queue.clear()
            self.queued_rows -= request.rows
            self._answer_alone(lane, request, now)
            self._let_go(1)
            return True
        max_rows = lane.rows_within(self._policy.max_batch_seconds)
        wait = self._policy.max_wait_seconds
        run_seconds = lane.cost.seconds(max_rows) if wait else 0.0
        made = plan(lane.queue, now, BatchLimits(max_rows, wait, run_seconds, lane.room))
        for _ in range(made.taken):
            lane.queue.popleft()
        self._drop(lane, made.expired + made.abandoned, now)
        if made.release is None:
            lane.queue.extendleft(reversed(made.run))
            if made.wake_at is not None:
                self._wake_by(made.wake_at, now)
            return False if made.expired or made.abandoned else None
        self.queued_rows -= made.rows
        if lane.following:
            self._following_rows -= lane.follow(made.run, now)
        batch = Batch(lane, made, now)
        rows, cost = batch.padded_rows, lane.cost
        quick = rows <= lane.proven_rows and cost.known and cost.seconds(rows) < self._inline_seconds
        if quick and not (lane.texts and has_long_texts(made.run)):
            self._compute(batch)
            self._finish(batch)
            return True
        if not self._give(batch):
            self._compute(batch)  # the system refuses to start a thread: slower, but no request is lost
            self._finish(batch)
            return True
        if not self._running:
            self.instances.begin(now)
        self._running_rows += batch.rows
        self._running.add(batch)
        self._explains |= cost is self._explaining
        return False

    def _is_short(self, lane: BatchQueue, request: Request, now: float) -> bool:
        """Return whether a lone request can skip ``plan``, which would run it inline at once."""
        rows, cost = request.rows, lane.cost
        return (
            lane.is_plain
            and not lane.following
            and now < request.deadline
            and rows <= lane.proven_rows
            and rows <= lane.max_rows
            and cost.known
            and cost.seconds(rows) < self._short_seconds
        )

    def _answer_alone(self, lane: BatchQueue, request: Request, now: float) -> None:
        """Compute one request in the serving thread, without the overhead of a Batch."""
        timings = Timings(now, rows := request.rows, 1)
        settlement = self._computing.compute_one(lane.signature, request, timings)
        finished = timings.finished
        if not isinstance(settlement, Answer):
            if request.settle(settlement):
                self.statistics.count_failed(request, finished)
                note_failure(request, timings)
            else:
                self._count_unanswered(request, finished)
            return
        lane.cost.observe(rows, finished - timings.started)
        full = rows >= lane.max_rows
        if request.settle(settlement):
            self.statistics.count_alone(request, timings, Release.FULL if full else Release.IDLE)
        else:
            self.statistics.count_batch(rows, finished - timings.started, Release.IDLE)
            self._count_unanswered(request, finished)

    def _drop(self, lane: BatchQueue, dropped: list[Request], now: float) -> None:
        if not dropped:
            return
        if lane.cost is self.cost:
            self._caution.learn(dropped, now, now)
        if lane.following:
            self._following_rows -= lane.follow(dropped, now)
        for request in dropped:
            self.queued_rows -= request.rows
            request.settle(DeadlineExceeded(EXPIRED))
            self._count_unanswered(request, now)
        self._let_go(len(dropped))

    def _wake_by(self, at: float, now: float) -> None:
        """Dispatch again at a time, or earlier if another lane needs it: one timer serves all lanes."""
        if at < self._wake_at:
            if self._wake is not None:
                self._wake.cancel()
            self._wake, self._wake_at = self._clock.call_later(at - now, self._dispatch), at

    # --- computing ---

    def _give(self, batch: Batch) -> bool:
        """Give a batch to an instance; return False if no thread can be started."""
        return self.instances.give(batch)

    def _dispatch_soon(self) -> None:
        """Schedule a dispatch after ``instances.allowed`` has grown."""
        if self.queued_rows and not self._scheduled:
            self._schedule()

    # --- answering ---

    def _finish_in_thread(self, batch: Batch) -> None:
        """Take a batch back in the serving thread; start the next one before sending this one's answers."""
        self._running.discard(batch)
        self._running_rows -= batch.rows
        self.instances.finished(batch)
        lane, timings = batch.lane, batch.timings
        self._explains &= lane.cost is not self._explaining
        self.statistics.aside_seconds += (seconds := timings.finished - timings.started)
        # If rows of any size share batches, one batch's duration says nothing about the next.
        if not self._pads and seconds < self._inline_seconds:
            lane.proven_rows = max(lane.proven_rows, batch.padded_rows)
        if self.queued_rows and not self._scheduled:
            self._dispatch()
        self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        timings, settlements, now = batch.timings, batch.settlements, self._now()
        if self._expiry.at != math.inf and batch.lane.cost is self.cost:
            self._caution.learn(batch.requests, timings.started, now)
        if isinstance(settlements, BatchOutputs):
            self._count_call(batch, batch.padded_rows, timings)
            answered, start, answer = [], 0, self._computing.answer
            for request in batch.requests:
                stop = start + request.rows
                if request.settle(answer(settlements, start, stop, timings)):
                    answered.append(request)
                else:
                    self._count_unanswered(request, now)
                start = stop
        else:
            answered = self._finish_singly(batch, settlements, now)
        if answered:
            self.statistics.count_answered(answered, timings, self._now())
        self._let_go(len(batch.requests))

    def _finish_singly(self, batch: Batch, settlements: list[Settlement], now: float) -> list[Request]:
        answered = []
        counted = None
        for request, settlement in zip(batch.requests, settlements, strict=True):
            if isinstance(settlement, Answer) and settlement.timings is not counted:
                counted = settlement.timings
                self._count_call(batch, padded_size(counted.rows, batch.allowed), counted)
            if not request.settle(settlement):
                self._count_unanswered(request, now)
            elif isinstance(settlement, Answer):
                answered.append(request)
            else:
                self.statistics.count_failed(request, now)
                note_failure(request, batch.timings)
        return answered

    def _count_call(self, batch: Batch, padded_rows: int, timings: Timings) -> None:
        seconds = timings.finished - timings.started
        batch.lane.cost.observe(padded_rows, seconds)
        self.statistics.count_batch(padded_rows, seconds, batch.release)

    def _count_unanswered(self, request: Request, now: float) -> None:
        """Count a request that ended without an answer: as failed if it expired, else as cancelled."""
        if request.deadline <= now:
            self.statistics.count_failed(request, now)
        else:
            self.statistics.cancelled += 1

    def _let_go(self, requests: int) -> None:
        self.outstanding -= requests
        if self.outstanding == 0 and self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()

    # --- deadlines ---

    def _expire(self) -> None:
        """Answer every expired request, including those whose batch is running."""
        now = self._now()
        earliest, expired = math.inf, []
        for request in self._requests():
            if request.settled:
                continue
            if request.deadline <= now:
                expired.append(request)
            elif request.deadline < earliest:
                earliest = request.deadline
        self._expiry.swept(earliest, now)
        for request in expired:  # last, because a caller may submit again when answered
            request.settle(DeadlineExceeded(EXPIRED))

    def _requests(self) -> Iterator[Request]:
        for lane in self._lanes.values():
            yield from lane.queue
        for batch in self._running:
            yield from batch.requests

    # --- closing ---

    def close(self) -> None:
        """Refuse all queued and new requests; the threads end after their work. Serving thread only."""
        self._closed = True
        self._most_rows = -1
        self._expiry.cancel()
        if self._wake is not None:
            self._wake.cancel()
        lanes = self._lanes.values()
        waiting = [request for lane in lanes for request in lane.queue]
        waiting += [part for lane in lanes for parts in lane.following.values() for part in parts]
        self._lanes.clear()
        self.queued_rows = self._following_rows = 0
        for request in waiting:
            request.settle(Unavailable(_UNLOADED))
        if waiting:
            self._let_go(len(waiting))
        self.instances.stop()
