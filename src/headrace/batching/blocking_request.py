"""A Request whose thread sleeps until it is settled; see ``calling_threads``."""

from __future__ import annotations

import _thread
from typing import cast

from headrace.base.errors import HeadraceError
from headrace.batching.request import Answer, Request, Settlement
from headrace.model.servable import CheckedInputs


class WaitingRequest(Request):
    """A Request whose thread sleeps until it is settled.

    Attributes:
        arrived: Start of the call on the monotonic clock.
        settlement: The answer or the error; None until settled.
        taken_in: Whether a thread that holds the turn has taken it over.
    """

    __slots__ = ("_asleep", "_sleeping", "arrived", "settlement", "taken_in")

    def __init__(self, inputs: CheckedInputs, deadline: float, arrived: float) -> None:
        """Make a request of checked inputs.

        Args:
            inputs: The layout, the columns and the number of rows.
            deadline: Deadline in seconds on the monotonic clock.
            arrived: Start of the call, likewise.
        """
        self.call = None
        self.layout, self.columns, self.rows = inputs
        self.deadline = deadline
        self.settled = False
        self.text_bytes = 0
        self.arrived = arrived
        self.settlement: Settlement | None = None
        self.taken_in = False
        self._asleep: _thread.LockType | None = None
        self._sleeping: dict[WaitingRequest, None] = {}

    @property
    def wanted(self) -> bool:
        """Whether its thread still waits for the answer."""
        return not self.settled

    def settle(self, settlement: Settlement) -> bool:
        """Settle the request, once; see ``Request.settle``.

        The order of steps matters if an interrupt comes between them. Either the request is not settled yet,
        and can be, or its settlement is set and only ``tell`` is needed.
        """
        if self.settled:
            self.columns = ()
            return False
        self.settlement = settlement
        self.settled = True
        self.columns = ()
        if self._asleep is not None:
            self.wake()
        return True

    def tell(self) -> None:
        """Notify its thread of the settlement; idempotent."""
        self.settled = True
        self.columns = ()
        self.wake()

    def answer(self) -> Answer:
        """Return the answer of a settled request.

        Raises:
            HeadraceError: The request was settled with an error.
        """
        settlement = self.settlement
        if isinstance(settlement, Answer):
            return settlement
        raise cast("HeadraceError", settlement)

    def expect_sleep(self, sleeping: dict[WaitingRequest, None]) -> None:
        """Make the request wakeable from now on.

        Args:
            sleeping: Requests whose threads sleep; ``wake`` removes this one.
        """
        self._sleeping = sleeping
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep until woken, or until a timeout in seconds."""
        if self._asleep is not None:
            self._asleep.acquire(timeout=seconds)

    def wake(self) -> None:
        """Wake its thread; idempotent."""
        if self._asleep is not None:
            self._sleeping.pop(self, None)
            try:  # noqa: SIM105 - runs for every request
                self._asleep.release()
            except RuntimeError:
                pass
