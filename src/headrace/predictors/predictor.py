"""The Predictor contract, fulfilled by a version's Batcher and by Predictors that wrap one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.base.clock import Clock
from headrace.base.errors import DeadlineExceeded, HeadraceError, Refused
from headrace.base.tensors import Tensors
from headrace.batching.fair_queue import USUAL_PRIORITY
from headrace.batching.request import Answer, BatchOutputs, Call, Origin, Request, Settlement, Timings

# An Attempt has the request's deadline, or the default's earlier one. When it passes, a queued Attempt is
# dropped; a running one is finished, and its result discarded. Only refusals and missed deadlines lead
# to a default answer. Errors of the request or of the model are reported: they must be fixed.


Refuse = Callable[[HeadraceError], object]


class Attempt(Request):
    """A request passed on to a model with a default; a refusal goes to a callback instead of the caller."""

    __slots__ = ("_asked", "_refused")

    def __init__(self, asked: Request, deadline: float, refused: Refuse) -> None:
        """Pass a request on.

        Args:
            asked: The caller's request.
            deadline: The model's deadline on the monotonic clock.
            refused: Called with the refusal, or with the error for a missed deadline.
        """
        self.layout, self.columns, self.rows = asked.layout, asked.columns, asked.rows
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self.call = asked.call
        self._asked = asked
        self._refused = refused

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits and the model has not answered."""
        return not self.settled and self._asked.wanted

    def settle(self, settlement: Settlement) -> bool:
        """Settle the request, once; see ``Request.settle``."""
        was_settled, wanted = self.settled, self.wanted
        self.settled = True
        self.columns = ()
        if wanted and isinstance(settlement, DeadlineExceeded | Refused):
            self._refused(settlement)
        elif not was_settled:
            self._asked.settle(settlement)  # even if nobody waits, so that the request ends
        return wanted


class PriorityOnly:
    """The call of a request that a Predictor makes itself: it has a priority, and ignores reports.

    Attributes:
        priority: Priority class.
    """

    __slots__ = ("priority",)

    outcome = None

    def __init__(self, priority: int) -> None:
        """Create the call."""
        self.priority = priority

    @classmethod
    def of(cls, call: Call | None) -> PriorityOnly | None:
        """Return a call with the priority class that another call names; None if it names none."""
        priority: int | None = getattr(call, "priority", None)
        return None if priority is None else cls(priority)

    def header(self, name: bytes) -> None:
        """Return None: there are no headers."""

    def answered_by(self, origin: Origin) -> None:
        """Do nothing: the calls that wait for the request learn the origin."""

    def failed_in(self, timings: Timings) -> None:
        """Do nothing: the calls that wait for the request may have ended."""


def priority_of(request: Request) -> int:
    """Return a request's priority class; lower numbers are served first."""
    priority: int = getattr(request.call, "priority", USUAL_PRIORITY)
    return priority


def deadline_within(request: Request, after_seconds: float, clock: Clock) -> float:
    """Return a request's deadline, or ``after_seconds`` from now if that is earlier and not 0."""
    return min(request.deadline, clock.now() + after_seconds) if after_seconds else request.deadline


def give_default(request: Request, outputs: Tensors, origin: Origin, timings: Timings) -> None:
    """Answer a request with a default, and report the answer's Origin to its call.

    Args:
        request: The request.
        outputs: The default's outputs for the request's rows.
        origin: The Origin of the default.
        timings: The default's timings.
    """
    if request.call is not None:
        request.call.answered_by(origin)
    request.settle(Answer(BatchOutputs(outputs, origin), 0, request.rows, timings))


class Predictor(Protocol):
    """Answers requests. Serving thread only.

    A version's Batcher is a Predictor. Others wrap one and submit requests of their own to it. All keep
    the Batcher's laws. A request is answered exactly once: by an Answer with an Origin, or an error.
    Requests that nobody waits for are not computed. A request's failure or cancellation affects no other
    request. An answer is delivered whole: Predictors do not stream.
    """

    def submit(self, request: Request) -> None:
        """Submit a request, or refuse it at once; ``respond`` is called either way."""
