"""Requests, which a Batcher merges, and Answers, each a request's rows of a batch's outputs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.base.logs import InCall
from headrace.base.tensors import Array, Buffer, Tensors
from headrace.model.servable import CheckedInputs, RowLayout

if TYPE_CHECKING:
    from headrace.batching.fair_queue import Turn

_log = logging.getLogger(__name__)

NO_DEADLINE = math.inf


def due(now: float, seconds: float) -> float:
    """Return the deadline that lies a number of seconds after ``now``.

    Raises:
        InvalidRequest: ``seconds`` is no number, or NaN. Such a deadline would never pass, and would keep
            others from passing.
    """
    try:
        is_number = not math.isnan(seconds)
    except (TypeError, OverflowError):
        is_number = False
    if not is_number:
        raise InvalidRequest(f"expected a number of seconds, got {seconds!r:.40}", field="timeout_seconds")
    return now + seconds


class Timings:
    """Times of one batch on the monotonic clock, in seconds; shared by the answers of the batch.

    Attributes:
        formed: Time at which the batch was formed.
        started: Start of the call of the Servable.
        finished: End of that call.
        rows: Number of rows computed, excluding padding.
        requests: Number of requests that shared the batch.
    """

    __slots__ = ("finished", "formed", "requests", "rows", "started")

    def __init__(self, formed: float, rows: int, requests: int) -> None:
        """Create the timings of a batch that was formed just now."""
        self.formed = self.started = self.finished = formed
        self.rows = rows
        self.requests = requests


class Origin(NamedTuple):
    """The model and version that produced an answer.

    Attributes:
        model: The model's name.
        version: Its version.
        is_default: Whether the answer replaces that of a model that did not answer; ``version`` 0 then means
            that no model was called.
        is_cached: Whether the answer repeats that to an equal request.
    """

    model: str
    version: int
    is_default: bool = False
    is_cached: bool = False


NOBODY = Origin("", 0)
"""The Origin of answers of a Batcher that serves no version."""


WRITTEN, VERSION = ".written", ".version"
"""Suffixes that turn the name of a looked-up input into the names of the outputs on that lookup."""


class LookedUp(NamedTuple):
    """Per-row result of the archive lookup for one input of a model.

    Attributes:
        version: The space version, int64 ``[rows]``.
        written: Time at which the value was written, in milliseconds of Unix time, uint64 ``[rows]``; 0 if
            none was found, or none recent enough.
    """

    version: Array
    written: Array


class BatchOutputs:
    """The outputs of a Servable for a whole batch, converted to bytes at most once for all answers.

    Attributes:
        tensors: The outputs by name, with all rows of the batch.
        origin: The Origin of the outputs.
        written: The numeric outputs that ``raw`` has converted to bytes, by name.
    """

    __slots__ = ("origin", "tensors", "written")

    def __init__(self, tensors: Tensors, origin: Origin = NOBODY) -> None:
        """Hold the outputs of one call."""
        self.tensors = tensors
        self.origin = origin
        self.written: dict[str, bytes] = {}

    def raw(self, name: str) -> bytes:
        """Return all rows of a numeric output as bytes, in C order."""
        found = self.written.get(name)
        if found is None:
            found = self.written[name] = self.tensors[name].tobytes()
        return found


class Answer:
    """One request's rows of its batch's outputs.

    Attributes:
        outputs: The whole batch's outputs.
        start: Index of the request's first row.
        stop: Index after its last row.
        timings: The batch's timings.
    """

    __slots__ = ("outputs", "start", "stop", "timings")

    def __init__(self, outputs: BatchOutputs, start: int, stop: int, timings: Timings) -> None:
        """Refer to the rows ``start:stop`` of a batch."""
        self.outputs = outputs
        self.start = start
        self.stop = stop
        self.timings = timings

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def origin(self) -> Origin:
        """The Origin of the answer."""
        return self.outputs.origin

    def tensor(self, name: str) -> Array:
        """Return one output as a view ``[rows, *row shape]``."""
        return self.outputs.tensors[name][self.start : self.stop]

    def tensors(self, names: Iterable[str] = ()) -> dict[str, Array]:
        """Return the outputs of these names, or all outputs, as views."""
        return {name: self.tensor(name) for name in names or self.outputs.tensors}

    @property
    def looked_up(self) -> dict[str, LookedUp]:
        """Results of archive lookups, by the name of the input that they provide; empty for most models."""
        tensors = self.outputs.tensors
        names = [name.removesuffix(WRITTEN) for name in tensors if name.endswith(WRITTEN)]
        return {
            name: LookedUp(self.tensor(name + VERSION), self.tensor(name + WRITTEN).view(np.uint64))
            for name in names
            if name + VERSION in tensors
        }

    def raw(self, name: str, row_bytes: int) -> bytes:
        """Return a numeric output's rows as bytes, in C order.

        Args:
            name: The output's name.
            row_bytes: Size of one of its rows in bytes.
        """
        outputs = self.outputs
        whole = outputs.written.get(name) or outputs.raw(name)
        return whole[self.start * row_bytes : self.stop * row_bytes]


class WholeAnswer(Answer):
    """The answer to a request that was one call of the model: the whole outputs, of any shape."""

    __slots__ = ()

    def tensor(self, name: str) -> Array:
        """Return one output in the shape that the model returned."""
        return self.outputs.tensors[name]

    def raw(self, name: str, row_bytes: int) -> bytes:
        """Return a numeric output as bytes, in C order."""
        return self.outputs.raw(name)


Settlement = Answer | HeadraceError
"""The result of a request: an Answer, or the error that replaces it."""


class Waiter(Protocol):
    """A caller that waits for an answer and may cancel, such as an asyncio Future."""

    def done(self) -> bool:
        """Return whether the caller has its answer or has cancelled."""


class Call(Protocol):
    """The call that a request came in, as far as batchers and predictors need it."""

    @property
    def outcome(self) -> InCall | None:
        """The call's record, which log lines name; None if there is none."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of an HTTP header or gRPC metadata key; None if it is absent.

        Args:
            name: The name in lower case.
        """

    def answered_by(self, origin: Origin) -> None:
        """Report the answer's Origin with the answer; called if it is not the requested model."""

    def failed_in(self, timings: Timings) -> None:
        """Receive the timings of a failed batch, in the loop iteration that settles the request."""


class Request:
    """Inputs, a deadline, and a way to be answered exactly once. Belongs to the serving thread.

    Attributes:
        layout: Memory layout of a row.
        columns: One buffer per input; cleared when the request is settled.
        rows: Number of rows.
        deadline: Deadline in seconds on the monotonic clock; ``NO_DEADLINE`` for none.
        enqueued: Time at which it entered the queue, likewise.
        settled: Whether it has been answered or abandoned.
        text_bytes: Bytes of text; 0 until it is enqueued in a lane with text inputs.
        call: The call that it came in; None in process.
        asker: Name of the caller; set by a ``FairQueue`` only.
        turn: Its place in the fair order; set by a ``FairQueue`` only.
    """

    asker: str
    turn: Turn

    __slots__ = (
        "_respond",
        "_waiter",
        "asker",
        "call",
        "columns",
        "deadline",
        "enqueued",
        "layout",
        "rows",
        "settled",
        "text_bytes",
        "turn",
    )

    def __init__(
        self,
        layout: RowLayout,
        columns: Sequence[Buffer],
        rows: int,
        respond: Callable[[Settlement], object],
        *,
        deadline: float = NO_DEADLINE,
        waiter: Waiter | None = None,
    ) -> None:
        """Make a request of checked inputs.

        Args:
            layout: Row layout from ``Signature.layout`` or ``Signature.check``.
            columns: One C-contiguous buffer per input, each ``rows * row_bytes`` long.
            rows: Number of rows.
            respond: Called once, in the serving thread, with the Answer or the error; not called if the
                waiter has cancelled.
            deadline: Deadline in seconds on the monotonic clock.
            waiter: The caller, which may cancel; without one, only ``abandon`` cancels the request.
        """
        self.call: Call | None = None
        self.layout = layout
        self.columns = columns
        self.rows = rows
        self.deadline = deadline
        self.enqueued = 0.0
        self.settled = False
        self.text_bytes = 0
        self._respond = respond
        self._waiter = waiter

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits for the answer."""
        return not self.settled and (self._waiter is None or not self._waiter.done())

    def settle(self, settlement: Settlement) -> bool:
        """Settle the request, once; a second settlement, or one that nobody waits for, is dropped.

        Exceptions of ``respond`` are logged and do not propagate.

        Returns:
            Whether the caller was still waiting.
        """
        # `wanted`, inlined because this runs for every request.
        wanted = not self.settled and (self._waiter is None or not self._waiter.done())
        self.settled = True
        self.columns = ()
        if wanted:
            try:
                self._respond(settlement)
            except Exception:  # noqa: BLE001 - must not affect other requests
                _log.exception("a request's respond callback failed")
        return wanted

    def abandon(self) -> None:
        """Cancel the request: ``respond`` is never called, and the request is not computed."""
        self.settled = True
        self.columns = ()


class AwaitedRequest(Request):
    """A Request that is settled through a future, as its result or exception; the most common kind."""

    __slots__ = ("_future",)

    def __init__(
        self,
        inputs: CheckedInputs,
        future: asyncio.Future[Answer],
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> None:
        """Make a request of checked inputs.

        Args:
            inputs: The layout, the columns and the number of rows.
            future: A future of the serving thread's loop; cancelled when the caller leaves.
            deadline: Deadline in seconds on the monotonic clock.
            call: The call that it came in.
        """
        self.call = call
        self.layout, self.columns, self.rows = inputs
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self._future = future

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits for the answer."""
        return not self.settled and not self._future.done()

    def settle(self, settlement: Settlement) -> bool:
        """Settle the request, once; see ``Request.settle``."""
        future = self._future
        self.columns = ()
        if self.settled or future.done():
            self.settled = True
            return False
        self.settled = True
        if isinstance(settlement, Answer):
            future.set_result(settlement)
        else:
            future.set_exception(settlement)
        return True
