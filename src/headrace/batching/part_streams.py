"""Answers in parts: the open streams of one version, each a model's generator that is asked part by part.

The laws of a stream:

1. A part is computed only when its reader asks for it, so at most one waits.
2. The generator is closed once: at its end, its error, its deadline, when the reader leaves, or when the
   version has drained too long. The stream counts as outstanding until then.
3. A deadline holds for the whole stream, also while nobody asks for the next part.

All of this runs in the serving thread; the model's code runs where ``part_steps`` takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, cast
from weakref import WeakSet

from headrace.base import logs
from headrace.base.clock import Clock, Timer
from headrace.base.errors import DeadlineExceeded, FailedPrecondition, HeadraceError, Overloaded, Unavailable
from headrace.base.tensors import Tensors
from headrace.batching.batch_queue import headrace_error, whole_outputs
from headrace.batching.cancelling import EXPIRED, Cancelling
from headrace.batching.compute_threads import Threads
from headrace.batching.concatenation import join
from headrace.batching.part_steps import Step, Steps, TaskSteps, ThreadSteps, Work
from headrace.batching.policy_defaults import instances
from headrace.batching.request import (
    NO_DEADLINE,
    Answer,
    BatchOutputs,
    Call,
    Origin,
    Request,
    Timings,
    WholeAnswer,
)
from headrace.batching.statistics import VersionStatistics
from headrace.config import BatchingPolicy
from headrace.model.servable import DEADLINE, CheckedInputs, Signature
from headrace.model.streaming_servable import Parts, StreamingServable

_UNLOADED = "the model version was unloaded before its answer was complete; try again"


class Held(Protocol):
    """A hold on the version, by a request whose turn may come long after."""

    def release(self) -> None:
        """Release the version; idempotent."""


class PartStreams:
    """The open streams of one version, and the Predictor that refuses requests for one whole answer.

    Attributes:
        drain_seconds: Time in seconds that open streams may take once the version is to be unloaded.
        on_idle: Called once when no stream is outstanding any more; reset to None before the call.
    """

    def __init__(
        self,
        servable: StreamingServable,
        policy: BatchingPolicy,
        clock: Clock,
        origin: Origin,
        statistics: VersionStatistics,
    ) -> None:
        """Serve a StreamingServable; starts no thread.

        Args:
            servable: The Servable.
            policy: Its limits.
            clock: The serving thread's clock.
            origin: The Origin of the answers.
            statistics: Counts each stream as one request.
        """
        self.drain_seconds = 30.0
        self.on_idle: Callable[[], object] | None = None
        self.statistics = statistics
        self.clock = clock
        self.origin = origin
        self._servable = servable
        self._most = policy.max_streams
        self._cancelling = Cancelling(origin)
        self._pool: Threads[Work] = Threads(f"{origin.model}/{origin.version}", instances(policy), _run)
        self._open: set[PartStream] = set()
        self._held: WeakSet[Held] = WeakSet()
        self._ending: Timer | None = None
        self._has_drained = False

    @property
    def outstanding(self) -> int:
        """Number of streams whose generators have not been closed."""
        return len(self._open)

    def is_this_thread(self) -> bool:
        """Return whether the running thread computes parts, outside of an event loop."""
        return self._pool.has_this_thread()

    def submit(self, request: Request) -> None:
        """Refuse a request for one whole answer; see ``Predictor``."""
        request.settle(answers_in_parts(self.origin.model))

    def open(
        self, inputs: CheckedInputs, deadline: float = NO_DEADLINE, call: Call | None = None
    ) -> PartStream:
        """Open a stream; the caller reads it to its end, or closes it.

        Args:
            inputs: Checked inputs.
            deadline: Deadline of the whole stream in seconds on the monotonic clock.
            call: The call that it came in.

        Raises:
            DeadlineExceeded: The deadline has passed.
            Overloaded: As many streams are open as may be.
            Unavailable: The version has been drained.
        """
        if self._has_drained:
            raise Unavailable(_UNLOADED)
        if deadline <= self.clock.now():
            self.statistics.refused += 1
            raise DeadlineExceeded(EXPIRED)
        if len(self._open) >= self._most:
            self.statistics.refused += 1
            raise Overloaded(
                f"{self._most} streams of {self.origin.model} version {self.origin.version} are open, and no "
                "more may be (batching.max_streams); try again"
            )
        layout = inputs.layout
        steps = self._steps(partial(self._begin, inputs), deadline, call)
        stream = PartStream(self, steps, self._servable.signatures[layout.signature], inputs.rows, call)
        self._open.add(stream)
        stream.expire_at(deadline)
        return stream

    def hold(self, held: Held) -> None:
        """Release a hold when the open streams are ended, if it still exists."""
        self._held.add(held)

    def _begin(self, inputs: CheckedInputs) -> Parts:
        layout, columns, rows = inputs
        return self._servable.parts(join(layout, [columns], rows, rows), layout.signature)

    def _steps(self, begin: Callable[[], Parts], deadline: float, call: Call | None) -> Steps:
        context = copy_context()
        context.run(DEADLINE.set, deadline)
        context.run(logs.CALL.set, None if call is None else call.outcome)
        loop = self._servable.loop
        if loop is None:
            return ThreadSteps(self._pool, cast("Any", begin), context, self.clock)
        return TaskSteps(loop, cast("Any", begin), context, self.clock, self._cancelling)

    def start(self, first: Callable[[], object]) -> None:
        """Run a function where the model's code will run, before the first stream, and wait for it.

        A function of a model with a loop runs in the calling thread: its calls run in the loop themselves.

        Raises:
            BaseException: Any exception of ``first``.
        """
        if self._servable.loop is not None:
            first()
            return
        try:
            self._pool.start(first)
        except BaseException:
            self._pool.stop()
            raise

    def gone(self, stream: PartStream) -> None:
        """Record that a stream's generator is closed."""
        self._open.discard(stream)
        if not self._open and self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()

    def drain(self) -> None:
        """End the streams that are still open after ``drain_seconds``, as the version is to be unloaded."""
        if self._ending is None:
            self._ending = self.clock.call_later(self.drain_seconds, self._end_all)

    def drained(self) -> None:
        """Open no more streams: the version is about to be closed."""
        self._has_drained = True
        if self._ending is not None:
            self._ending.cancel()

    def _end_all(self) -> None:
        self._has_drained = True
        for stream in [*self._open]:
            stream.fail(Unavailable(_UNLOADED))
        for held in [*self._held]:
            held.release()

    def stop(self) -> None:
        """Make the threads end; no stream is open any more. Any thread may call this."""
        self._pool.stop()


class PartStream:
    """One open stream: an asynchronous iterator of Answers.

    Attributes:
        ended: Future that gets an Answer with the number of rows and the timings when the stream has ended
            without an error; None if nobody needs it.
    """

    def __init__(
        self, streams: PartStreams, steps: Steps, signature: Signature, rows: int, call: Call | None
    ) -> None:
        """Open a stream; called by ``PartStreams.open``."""
        self.ended: asyncio.Future[Answer] | None = None
        self._streams = streams
        self._steps = steps
        self._signature = signature
        self._call = call
        self._arrived = streams.clock.now()
        self._timings = Timings(self._arrived, rows, 1)
        self._timer: Timer | None = None
        self._waiting: asyncio.Future[Answer | None] | None = None
        self._step_began = self._computed_seconds = 0.0
        self._rows = rows
        self._has_ended = False
        self._error: HeadraceError | None = None

    def expire_at(self, deadline: float) -> None:
        """End the stream at its deadline."""
        if deadline != NO_DEADLINE:
            seconds = deadline - self._streams.clock.now()
            self._timer = self._streams.clock.call_later(seconds, self.fail, DeadlineExceeded(EXPIRED))

    def __aiter__(self) -> PartStream:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> Answer:
        """Compute the next part, and return it.

        Raises:
            HeadraceError: The stream has ended in an error.
            StopAsyncIteration: The answer is complete.
        """
        if self._has_ended:
            raise self._error or StopAsyncIteration
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        self._step_began = self._streams.clock.now()
        try:
            self._steps.next(self._settle)
        except HeadraceError as error:
            self.fail(error)
        answer: Answer | None = await waiting
        if answer is None:
            raise StopAsyncIteration
        return answer

    def close(self) -> None:
        """End the stream because its reader has left; no effect after its end."""
        if not self._has_ended:
            self._streams.statistics.cancelled += 1
            self._end()

    def fail(self, error: HeadraceError) -> None:
        """End the stream in an error; no effect after its end."""
        if self._has_ended:
            return
        self._error = error
        self._streams.statistics.failures += 1
        self._streams.statistics.failure_seconds += self._streams.clock.now() - self._arrived
        self._end()
        if self._call is not None:
            self._call.failed_in(self._timings)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _settle(self, step: Step) -> None:
        now = self._streams.clock.now()
        self._computed_seconds += now - self._step_began
        self._timings.finished = now
        if self._has_ended:
            return
        if step is None:
            self._complete(now)
        elif isinstance(step, BaseException):
            self.fail(headrace_error(step))
        else:
            self._deliver(step)

    def _deliver(self, outputs: Tensors) -> None:
        try:
            outputs = whole_outputs(self._signature, outputs, 0)
        except HeadraceError as error:
            self.fail(error)
            return
        rows = len(next(iter(outputs.values())))
        answer = WholeAnswer(BatchOutputs(outputs, self._streams.origin), 0, rows, self._timings)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    def _complete(self, now: float) -> None:
        self._streams.statistics.count_stream(self._rows, self._arrived, now)
        self._end()
        if self.ended is not None and not self.ended.done():
            nothing = BatchOutputs({}, self._streams.origin)
            self.ended.set_result(Answer(nothing, 0, self._rows, self._timings))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _end(self) -> None:
        """End the stream, once."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._streams.statistics.count_steps(self._rows, self._computed_seconds)
        self._steps.close(partial(self._streams.gone, self))


class OnePart:
    """The answer of a model that does not stream, as a stream of one part."""

    def __init__(self, answer: asyncio.Future[Answer]) -> None:
        """Wrap the future of the answer."""
        self._answer: asyncio.Future[Answer] | None = answer

    def __aiter__(self) -> OnePart:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> Answer:
        """Return the answer, once.

        Raises:
            HeadraceError: There is no answer.
            StopAsyncIteration: It has been returned.
        """
        answer, self._answer = self._answer, None
        if answer is None:
            raise StopAsyncIteration
        return await answer

    def close(self) -> None:
        """Drop the request if it has not been answered."""
        if self._answer is not None:
            self._answer.cancel()


def answers_in_parts(model: str) -> FailedPrecondition:
    """Return the error for a request for one whole answer of a model that streams."""
    return FailedPrecondition(
        f"{model} answers in parts: ask for them with POST /v2/models/{model}/generate_stream, with "
        "ModelStreamInfer, or in process with Engine.stream"
    )


def _run(work: Work) -> None:
    work()
