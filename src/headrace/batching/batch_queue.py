"""Lanes, the queues of requests that can share a batch, and batches."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.base.errors import HeadraceError, ModelError
from headrace.base.tensors import Tensors, describe
from headrace.batching.compute_threads import Worker
from headrace.batching.concatenation import FilledRoom, padded_size
from headrace.batching.cost import BatchCost
from headrace.batching.plan import Plan, Release, Room
from headrace.batching.request import BatchOutputs, Request, Settlement, Timings
from headrace.batching.request_parts import parts_within, split
from headrace.batching.text_limits import MOST_BYTES, TextRoom, bytes_of, row_counts, text_inputs
from headrace.config import BatchingPolicy
from headrace.model.servable import Signature

if TYPE_CHECKING:
    from headrace.batching.fair_queue import FairQueue

_log = logging.getLogger(__name__)


class OneRequest:
    """A ``Room`` for a single request, used if requests are not merged."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        """Begin an empty batch."""
        self._taken = False

    def takes(self, item: object) -> bool:
        """Take the first request only, and return whether this was it."""
        taken, self._taken = self._taken, True
        return not taken


class BatchQueue:
    """The queue of requests that can share a batch, in the order of their arrival.

    Attributes:
        signature: The signature with which all of them call the model.
        cost: Predicts the duration of their batches.
        queue: The requests.
        following: For a part in the queue, the later parts of its request, in reverse order.
        allowed: Allowed batch sizes; empty for any.
        max_rows: The most rows of a batch.
        proven_rows: Rows of the largest batch of this lane that ran within ``inline_seconds``; unlimited if
            all rows have the same size. Otherwise the cost learnt in other lanes says nothing about this one:
            attention over 16,000 tokens takes a million times as long as over 16.
        room: Factory of a ``Room``; None if only rows limit a batch.
        texts: Indices of the text inputs.
        is_plain: Whether batches may have any size and only rows limit them.
    """

    __slots__ = (
        "_cuts_texts",
        "_turn",
        "allowed",
        "cost",
        "following",
        "is_plain",
        "max_rows",
        "proven_rows",
        "queue",
        "room",
        "signature",
        "texts",
    )

    def __init__(self, signature: Signature, policy: BatchingPolicy, cost: BatchCost) -> None:
        """Create an empty lane."""
        self.cost = cost
        self.signature = signature
        self.queue: deque[Request] = deque()
        self.following: dict[Request, list[Request]] = {}
        self._turn = 0.0
        self.proven_rows = 0 if any(None in spec.shape for spec in signature.inputs) else sys.maxsize
        self.allowed: Sequence[int] = policy.allowed_batch_rows
        self.max_rows = self.allowed[-1] if self.allowed else policy.max_batch_rows
        if signature.rows is not None:
            self.allowed, self.max_rows = (signature.rows,), signature.rows
        self.room: Callable[[], Room] | None = None
        if policy.pad_variable_length:
            self.room = partial(FilledRoom, self.allowed)
        self.texts = text_inputs(signature)
        # If output rows may have any shape, the answers of parts might not fit together.
        self._cuts_texts = all(None not in spec.shape for spec in signature.outputs)
        if self.texts:
            self.room = partial(TextRoom, self.room)
        if not policy.enabled:
            self.allowed, self.max_rows, self.room, self.texts = (), sys.maxsize, OneRequest, ()
        self.is_plain = self.room is None and not self.allowed

    def rows_within(self, seconds: float) -> int:
        """Return the most rows of a batch predicted to take at most ``seconds``, an allowed size if set."""
        rows = self.cost.rows_within(seconds, self.max_rows)
        if rows >= self.max_rows or not self.allowed:
            return rows
        return max((size for size in self.allowed if size <= rows), default=self.allowed[0])

    @property
    def waits_since(self) -> float:
        """Later of two times: the arrival of the lane's head, and the last enqueueing of a later part."""
        return max(self.queue[0].enqueued, self._turn)

    def rows_before(self, request: Request) -> int:
        """Return the estimated rows served before a request; ``FairQueue`` only."""
        return cast("FairQueue", self.queue).rows_before(request)

    def give_way(self, request: Request, rows: int) -> list[Request]:
        """Remove and return the requests that make room for a request; ``FairQueue`` only."""
        return cast("FairQueue", self.queue).give_way(request, rows)

    def weigh(self, request: Request) -> bool:
        """Set a request's ``text_bytes``.

        Returns:
            Whether the request must be split because of its texts.
        """
        request.text_bytes = bytes_of(request.columns, self.texts)
        return request.text_bytes > MOST_BYTES and request.rows > 1 and self._cuts_texts

    def put_parts(self, request: Request, *, fill: bool) -> list[Request]:
        """Split a request and enqueue its first part; each later part follows when its predecessor leaves.

        A large request thus queues once per part, and delays other requests by one part at a time.

        Args:
            request: The request to split.
            fill: Whether the answer's rows may be padded to the longest.

        Returns:
            All parts, in order.
        """
        if self.texts and self.weigh(request):
            counts = row_counts(request.columns, self.texts, request.rows, self.max_rows, self.allowed)
        else:
            counts = parts_within(request.rows, self.max_rows)
        parts = split(request, counts, fill=fill)
        for part in parts:
            part.enqueued = request.enqueued
            if self.texts:
                self.weigh(part)
        first, *rest = parts
        self.queue.append(first)
        if rest:
            self.following[first] = rest[::-1]
        return parts

    def follow(self, left: Iterable[Request], now: float) -> int:
        """Enqueue the parts that follow those that left the queue.

        Args:
            left: Requests that left the queue.
            now: Current time on the monotonic clock.

        Returns:
            Number of rows of the enqueued parts.
        """
        rows = 0
        for request in left:
            rest = self.following.pop(request, None)
            if rest is not None:
                following = rest.pop()
                self._turn = now
                rows += following.rows
                self.queue.append(following)
                if rest:
                    self.following[following] = rest
        return rows


def by_age(lanes: Collection[BatchQueue]) -> Sequence[BatchQueue]:
    """Return the lanes with requests, the longest waiting first; a single lane even if it is empty."""
    if len(lanes) == 1:
        return tuple(lanes)
    return sorted((lane for lane in lanes if lane.queue), key=lambda lane: lane.waits_since)


class Batch:
    """Requests that are computed together; made in the serving thread, filled in by the computing thread.

    Attributes:
        lane: The lane in which the requests waited.
        signature: The signature with which they call the model.
        allowed: Allowed batch sizes; empty for any.
        requests: The requests in the order of the queue.
        rows: Total number of rows of the requests.
        padded_rows: Number of rows passed to the model, including padding.
        release: Reason for the batch's release.
        columns: Inputs of each request.
        timings: Times at which the batch was formed, started and finished.
        settlements: Outputs for the whole batch, or one settlement per request.
        worker: The instance thread that computes the batch; None for another thread.
    """

    __slots__ = (
        "allowed",
        "columns",
        "lane",
        "padded_rows",
        "release",
        "requests",
        "rows",
        "settlements",
        "signature",
        "timings",
        "worker",
    )

    def __init__(self, lane: BatchQueue, made: Plan[Request], now: float) -> None:
        """Create the batch of a plan."""
        self.lane = lane
        self.signature = lane.signature
        self.allowed = lane.allowed
        self.requests = made.run
        self.rows = made.rows
        self.padded_rows = padded_size(made.rows, lane.allowed)
        self.release = made.release or Release.IDLE
        # The serving thread clears a request's columns when it settles it, so the batch keeps references.
        self.columns = [request.columns for request in made.run]
        self.timings = Timings(now, made.rows, len(made.run))
        self.settlements: BatchOutputs | list[Settlement] = []
        self.worker: Worker[Batch] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a caller still waits for one of its requests."""
        for request in self.requests:  # noqa: SIM110 - closing a generator would swallow an interrupt
            if request.wanted:
                return True
        return False


def whole_outputs(signature: Signature, outputs: Tensors, rows: int) -> Tensors:
    """Return the declared outputs of a model whose outputs may have any number of rows, checked."""
    return declared_outputs(signature, outputs, None)


def declared_outputs(signature: Signature, outputs: Tensors, rows: int | None) -> Tensors:
    """Check a model's outputs against its signature and return the declared ones; others are dropped.

    Args:
        signature: The signature with which the model was called.
        outputs: The model's outputs.
        rows: Number of input rows; None if outputs may have any number of rows.

    Raises:
        ModelError: An output is missing or has the wrong dtype, shape or number of rows.
    """
    declared = {}
    for spec in signature.outputs:
        array = outputs.get(spec.name)
        if array is None:
            raise ModelError(f"the model did not give its output {spec.name!r}")
        if array.ndim == 0 or (rows is not None and len(array) != rows):
            batch = "a batch" if rows is None else f"a batch of {rows} rows"
            raise ModelError(f"the model gave {describe(array)} as {spec.name!r} for {batch}")
        if array.dtype != spec.dtype or not spec.accepts(array.shape[1:]):
            raise ModelError(
                f"the model gave {describe(array)} as {spec.name!r}, which it declares as {spec}"
            )
        declared[spec.name] = array
    return declared


def note_failure(request: Request, timings: Timings) -> None:
    """Report the batch's timings to the call of a failed request."""
    if request.call is not None:
        request.call.failed_in(timings)


def headrace_error(error: BaseException) -> HeadraceError:
    """Return the error that answers a request after the model raised; unexpected exceptions are logged."""
    if isinstance(error, HeadraceError):
        return error
    _log.error("a model raised an unexpected error", exc_info=error)
    said = f"the model failed with {type(error).__name__}; the server's log says more"
    return ModelError(said, told="the model failed; the server's log says more")
