"""What waits together, and what is computed together."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.batching.cost import BatchCost
from headrace.batching.joining import FilledRoom, padded_size
from headrace.batching.plan import Plan, Release, Room
from headrace.batching.request import BatchOutputs, Request, Settlement, Timings
from headrace.batching.splitting import parts_within, split
from headrace.batching.texts import MOST_BYTES, TextRoom, bytes_of, row_counts, text_inputs
from headrace.batching.threads import Worker
from headrace.config import BatchingPolicy
from headrace.errors import HeadraceError, ModelError
from headrace.servable import Signature
from headrace.tensors import Tensors, describe

if TYPE_CHECKING:
    from headrace.batching.fair_queue import FairQueue

_log = logging.getLogger(__name__)


class OneRequest:
    """The room of a batch where requests are not merged."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        """Begin with none."""
        self._taken = False

    def takes(self, item: object) -> bool:
        """Take the first request only."""
        taken, self._taken = self._taken, True
        return not taken


class Lane:
    """The queue of requests that can share a batch, in the order of their arrival.

    Attributes:
        signature: How they all call the model.
        queue: The requests.
        following: For a part in the queue, the parts of its request that come after it, the next one last.
        allowed: The only sizes that a batch may have; empty for any.
        max_rows: The most rows of a batch.
        proven_rows: The most rows that a batch of such rows was quick with. Where the model lets a row's size
            differ, the cost that was learnt from other rows says nothing about these: attention over 16,000
            tokens takes a million times as long as over 16.
        room: Makes what a batch has room for beside its rows; None where its rows are of one shape and size.
        texts: Which inputs are texts.
        is_plain: Whether its batches have any size, and nothing is to be looked at but their rows.
    """

    __slots__ = (
        "_cuts_texts",
        "_turn",
        "allowed",
        "following",
        "is_plain",
        "max_rows",
        "proven_rows",
        "queue",
        "room",
        "signature",
        "texts",
    )

    def __init__(self, signature: Signature, policy: BatchingPolicy) -> None:
        """Open an empty queue."""
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
        # Where rows may be answered in any shape, the answers of parts would not fit together.
        self._cuts_texts = all(None not in spec.shape for spec in signature.outputs)
        if self.texts:
            self.room = partial(TextRoom, self.room)
        if not policy.enabled:
            self.allowed, self.max_rows, self.room, self.texts = (), sys.maxsize, OneRequest, ()
        self.is_plain = self.room is None and not self.allowed

    def rows_within(self, seconds: float, cost: BatchCost) -> int:
        """The most rows of a batch predicted to stay within a time: with allowed sizes, one of those."""
        rows = cost.rows_within(seconds, self.max_rows)
        if rows >= self.max_rows or not self.allowed:
            return rows
        return max((size for size in self.allowed if size <= rows), default=self.allowed[0])

    @property
    def waits_since(self) -> float:
        """Since when the queue waits for its turn: its head came then, or a part followed another."""
        return max(self.queue[0].enqueued, self._turn)

    def rows_before(self, request: Request) -> int:
        """Where callers take turns: how many rows come before a request's; see ``FairQueue``."""
        return cast("FairQueue", self.queue).rows_before(request)

    def give_way(self, request: Request, rows: int) -> list[Request]:
        """Where callers take turns: who leaves the queue for a request; see ``FairQueue``."""
        return cast("FairQueue", self.queue).give_way(request, rows)

    def weigh(self, request: Request) -> bool:
        """Let a request know how many bytes of text it has.

        Returns:
            Whether it is cut for them, however few rows it has.
        """
        request.text_bytes = bytes_of(request.columns, self.texts)
        return request.text_bytes > MOST_BYTES and request.rows > 1 and self._cuts_texts

    def put_parts(self, request: Request, *, fill: bool) -> list[Request]:
        """Put the first of a request's parts in the queue; each other one follows when the one before leaves.

        So a large request waits for its turn as often as it has parts, and holds up others by one part at a
        time.

        Args:
            request: What is cut.
            fill: Whether its answer's rows may be filled up.

        Returns:
            All of them, in order.
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
        """Put the parts in the queue that follow those which left it.

        Args:
            left: What left the queue.
            now: When the parts enter it.

        Returns:
            How many rows they have.
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


class Batch:
    """Requests that are computed together; made in the serving thread, filled by whoever computes it.

    Attributes:
        lane: Where they waited.
        signature: How they call the model.
        allowed: The only sizes that the model may see; empty for any.
        requests: In the order of their arrival.
        rows: Their rows together.
        padded_rows: The rows that the model sees.
        release: Why the batch went.
        layouts: How each request's rows lie in memory.
        columns: Each request's inputs.
        timings: Where its time went.
        settlements: What came of it: for all together, or for each request.
        worker: The instance's thread that computes it; None for another thread.
    """

    __slots__ = (
        "allowed",
        "columns",
        "lane",
        "layouts",
        "padded_rows",
        "release",
        "requests",
        "rows",
        "settlements",
        "signature",
        "timings",
        "worker",
    )

    def __init__(self, lane: Lane, made: Plan[Request], now: float) -> None:
        """Make the batch that was planned."""
        self.lane = lane
        self.signature = lane.signature
        self.allowed = lane.allowed
        self.requests = made.run
        self.rows = made.rows
        self.padded_rows = padded_size(made.rows, lane.allowed)
        self.release = made.release or Release.IDLE
        # A settled request lets go of its columns in the serving thread, so the batch keeps its own
        # references.
        self.layouts = [request.layout for request in made.run]
        self.columns = [request.columns for request in made.run]
        self.timings = Timings(now, made.rows, len(made.run))
        self.settlements: BatchOutputs | list[Settlement] = []
        self.worker: Worker[Batch] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for one of its requests."""
        for request in self.requests:  # noqa: SIM110 - a generator that is closed loses an interrupt
            if request.wanted:
                return True
        return False


def whole_outputs(signature: Signature, outputs: Tensors, rows: int) -> Tensors:
    """As ``declared_outputs``, of a model whose outputs need not have as many rows as its inputs."""
    return declared_outputs(signature, outputs, None)


def declared_outputs(signature: Signature, outputs: Tensors, rows: int | None) -> Tensors:
    """The outputs of a signature, checked; whatever else the model gave is nobody's.

    Args:
        signature: How the model was called.
        outputs: What it gave.
        rows: How many rows it was given; None where its outputs may have any number.

    Raises:
        ModelError: An output is missing, or is not of its dtype, its shape or that many rows.
    """
    declared = {}
    for spec in signature.outputs:
        array = outputs.get(spec.name)
        if array is None:
            raise ModelError(f"the model did not give its output {spec.name!r}")
        if array.ndim == 0 or (rows is not None and len(array) != rows):
            raise ModelError(f"the model gave {describe(array)} as {spec.name!r} for a batch of {rows} rows")
        if array.dtype != spec.dtype or not spec.accepts(array.shape[1:]):
            raise ModelError(
                f"the model gave {describe(array)} as {spec.name!r}, which it declares as {spec}"
            )
        declared[spec.name] = array
    return declared


def note_failure(request: Request, timings: Timings) -> None:
    """Let the call that a failed request came from know the times of its batch."""
    if request.call is not None:
        request.call.failed_in(timings)


def headrace_error(error: BaseException) -> HeadraceError:
    """What a request is answered with after the model raised something; what is unexpected is logged."""
    if isinstance(error, HeadraceError):
        return error
    _log.error("a model raised an unexpected error", exc_info=error)
    said = f"the model failed with {type(error).__name__}; the server's log says more"
    return ModelError(said, told="the model failed; the server's log says more")
