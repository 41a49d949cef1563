"""A request as it is passed on to a model that has a default, and what all defaults do with it.

The request's own deadline stays that of the model: what is queued then is dropped, what is being computed is
finished and thrown away. Errors of the request or of the model are not covered: they are mistakes that
somebody should see, and no lack of time.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.batching.request import Answer, BatchOutputs, Origin, Request, Settlement, Timings
from headrace.clock import Clock
from headrace.errors import DeadlineExceeded, HeadraceError, Refused
from headrace.tensors import Tensors

Refuse = Callable[[HeadraceError], object]


class Attempt(Request):
    """A request as it is passed on to the model: a refusal goes to whoever has a default instead."""

    __slots__ = ("_asked", "_refused")

    def __init__(self, asked: Request, deadline: float, refused: Refuse) -> None:
        """Pass a request on.

        Args:
            asked: The request.
            deadline: Until when the model may answer, on the monotonic clock.
            refused: Called with the refusal, or with the error that the deadline has passed.
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
        """Whether somebody still waits for the model's own answer."""
        return not self.settled and self._asked.wanted

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once; see ``Request.settle``."""
        was_settled, wanted = self.settled, self.wanted
        self.settled = True
        self.columns = ()
        if wanted and isinstance(settlement, DeadlineExceeded | Refused):
            self._refused(settlement)
        elif not was_settled:
            self._asked.settle(settlement)  # also where nobody waits: then it hears that it is over
        return wanted


def deadline_within(request: Request, after_seconds: float, clock: Clock) -> float:
    """A request's deadline, or some seconds from now if that is earlier."""
    return min(request.deadline, clock.now() + after_seconds) if after_seconds else request.deadline


def give_default(request: Request, outputs: Tensors, origin: Origin, timings: Timings) -> None:
    """Answer a request with a default, and say so.

    Args:
        request: The request.
        outputs: Its rows.
        origin: Who gave them.
        timings: When that was.
    """
    if request.call is not None:
        request.call.answered_by(origin)
    request.settle(Answer(BatchOutputs(outputs, origin), 0, request.rows, timings))
