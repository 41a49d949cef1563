"""A Request, what merges in a Batcher; and an Answer, its rows of what the batch gave."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from headrace.errors import HeadraceError, InvalidRequest
from headrace.logs import InCall
from headrace.servable import CheckedInputs, RowLayout
from headrace.tensors import Array, Buffer, Tensors

if TYPE_CHECKING:
    from headrace.batching.fair_queue import Turn

_log = logging.getLogger(__name__)

NO_DEADLINE = math.inf


def due(now: float, seconds: float) -> float:
    """When seconds are over.

    Raises:
        InvalidRequest: They are no number: such a deadline never passes, and keeps others from passing.
    """
    if math.isnan(seconds):
        raise InvalidRequest(f"expected a number of seconds, got {seconds}", field="timeout_seconds")
    return now + seconds


class Timings:
    """Where one batch's time went; shared by the answers of the batch.

    Attributes:
        formed: When the batch was formed, on the monotonic clock.
        started: When the Servable was called.
        finished: When it had answered.
        rows: The rows that were computed, padding left out.
        requests: How many requests shared the batch.
    """

    __slots__ = ("finished", "formed", "requests", "rows", "started")

    def __init__(self, formed: float, rows: int, requests: int) -> None:
        """Start timing a batch that was formed just now."""
        self.formed = self.started = self.finished = formed
        self.rows = rows
        self.requests = requests


class Origin(NamedTuple):
    """Who gave an answer.

    Attributes:
        model: The model's name.
        version: Its version.
        is_default: Whether it stands in for a model that did not answer; ``version`` 0 then means that no
            model was asked.
        is_cached: Whether it was given before, to an equal request, and is repeated.
    """

    model: str
    version: int
    is_default: bool = False
    is_cached: bool = False


NOBODY = Origin("", 0)
"""Gives the answers of a Batcher that serves no version."""


WRITTEN, VERSION = ".written", ".version"
"""Behind the name of an input that was looked up: the outputs that say what was found."""


class LookedUp(NamedTuple):
    """What was looked up for one input of a model, for each row.

    Attributes:
        version: The version of the space, int64 ``[rows]``.
        written: When the value was written, in milliseconds of Unix time, uint64 ``[rows]``; 0 where none was
            found, or none that is young enough.
    """

    version: Array
    written: Array


class BatchOutputs:
    """What the Servable gave for a whole batch; turned into bytes at most once, for all answers together.

    Attributes:
        tensors: The outputs by name, all rows of the batch.
        origin: Who gave them.
    """

    __slots__ = ("_raw", "origin", "tensors")

    def __init__(self, tensors: Tensors, origin: Origin = NOBODY) -> None:
        """Keep the outputs of one call."""
        self.tensors = tensors
        self.origin = origin
        self._raw: dict[str, bytes] = {}

    def raw(self, name: str) -> bytes:
        """All rows of a numeric output as bytes, in C order."""
        found = self._raw.get(name)
        if found is None:
            found = self._raw[name] = self.tensors[name].tobytes()
        return found


class Answer:
    """One request's rows of its batch's outputs.

    Attributes:
        outputs: The whole batch's outputs.
        start: The first row that is this request's.
        stop: The row after its last.
        timings: When the batch was formed, started and finished.
    """

    __slots__ = ("outputs", "start", "stop", "timings")

    def __init__(self, outputs: BatchOutputs, start: int, stop: int, timings: Timings) -> None:
        """Cut the rows ``start:stop`` out of a batch."""
        self.outputs = outputs
        self.start = start
        self.stop = stop
        self.timings = timings

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.stop - self.start

    @property
    def origin(self) -> Origin:
        """Who gave it."""
        return self.outputs.origin

    def tensor(self, name: str) -> Array:
        """One output: ``[rows, *row shape]``, a view."""
        return self.outputs.tensors[name][self.start : self.stop]

    def tensors(self, names: Iterable[str] = ()) -> dict[str, Array]:
        """The outputs of these names, or all of them, as views."""
        return {name: self.tensor(name) for name in names or self.outputs.tensors}

    @property
    def looked_up(self) -> dict[str, LookedUp]:
        """What was looked up, by the name of the input that comes from an archive; most models have none."""
        tensors = self.outputs.tensors
        names = [name.removesuffix(WRITTEN) for name in tensors if name.endswith(WRITTEN)]
        return {
            name: LookedUp(self.tensor(name + VERSION), self.tensor(name + WRITTEN).view(np.uint64))
            for name in names
            if name + VERSION in tensors
        }

    def raw(self, name: str, row_bytes: int) -> bytes:
        """A numeric output's rows as bytes, in C order.

        Args:
            name: The output.
            row_bytes: The size of one row of it.
        """
        return self.outputs.raw(name)[self.start * row_bytes : self.stop * row_bytes]


class WholeAnswer(Answer):
    """The answer to a request that was one call of the model: its outputs whole, whatever their shapes."""

    __slots__ = ()

    def tensor(self, name: str) -> Array:
        """One output, of the shape that the model gave it."""
        return self.outputs.tensors[name]

    def raw(self, name: str, row_bytes: int) -> bytes:
        """A numeric output as bytes, in C order."""
        return self.outputs.raw(name)


Settlement = Answer | HeadraceError
"""What a request ends with: an Answer, or the error why there is none."""


class Waiter(Protocol):
    """Whoever waits for an answer, and may leave; an asyncio Future is one."""

    def done(self) -> bool:
        """Whether it has its answer, or no longer wants one."""


class Call(Protocol):
    """What a request came with, as far as it concerns who answers it."""

    @property
    def outcome(self) -> InCall | None:
        """Its record, which log lines name; None where there is none."""

    def header(self, name: bytes) -> bytes | None:
        """The first value of an HTTP header, or of a key in gRPC's metadata.

        Args:
            name: In lower case.
        """

    def answered_by(self, origin: Origin) -> None:
        """Say with the answer who gave it: called when that is not the model that was asked."""

    def failed_in(self, timings: Timings) -> None:
        """Told the times of the batch that failed, in the turn in which the request is settled."""


class Request:
    """Inputs, a deadline, and a way to be answered exactly once. Belongs to the serving thread.

    Attributes:
        layout: How a row lies in memory.
        columns: One buffer an input; emptied when the request is settled.
        rows: How many rows it has.
        deadline: When its answer loses its worth, on the monotonic clock; ``NO_DEADLINE`` for never.
        enqueued: When it entered the queue.
        settled: Whether it has been answered, or abandoned.
        text_bytes: How many bytes of text it has, once it is in a queue.
        call: What it came with; None in process.
        asker: Who asks, by name; only where callers take turns.
        turn: Its place among them, once it waits; only where callers take turns.
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
            layout: From ``Signature.layout`` or ``Signature.check``.
            columns: One C-contiguous buffer an input, each ``rows * row_bytes`` long.
            rows: How many rows.
            respond: Called once, in the serving thread, with the Answer or the error; not when the waiter has
                left.
            deadline: On the monotonic clock, in seconds.
            waiter: Tells whether somebody still waits; without one, only ``abandon`` ends the waiting.
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
        """Whether somebody still waits for the answer."""
        return not self.settled and (self._waiter is None or not self._waiter.done())

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once: a second settlement, or one that nobody waits for, is dropped.

        What ``respond`` raises is logged, and goes no further.

        Returns:
            Whether somebody was answered.
        """
        # What `wanted` says, spelled out: this is on every request's way.
        wanted = not self.settled and (self._waiter is None or not self._waiter.done())
        self.settled = True
        self.columns = ()
        if wanted:
            try:
                self._respond(settlement)
            except Exception:  # noqa: BLE001 - the caller's own code: its failure stays its own
                _log.exception("a request's respond callback failed")
        return wanted

    def abandon(self) -> None:
        """Nobody waits any more: never call ``respond``, never compute."""
        self.settled = True
        self.columns = ()


class AwaitedRequest(Request):
    """A Request whose settlement is awaited, as a future's result or exception: the commonest kind."""

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
            inputs: The layout, the columns, and how many rows.
            future: Of the serving thread's loop; cancelled when nobody waits any more.
            deadline: On the monotonic clock, in seconds.
            call: What it came with.
        """
        self.call = call
        self.layout, self.columns, self.rows = inputs
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self._future = future

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not self.settled and not self._future.done()

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once; see ``Request.settle``."""
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
