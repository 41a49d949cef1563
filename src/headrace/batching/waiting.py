"""A Request whose thread sleeps until it is settled; see ``callers``."""

from __future__ import annotations

import _thread
from typing import cast

from headrace.batching.request import Answer, Request, Settlement
from headrace.errors import HeadraceError
from headrace.servable import CheckedInputs


class WaitingRequest(Request):
    """A Request whose thread sleeps until it is settled.

    Attributes:
        arrived: When the call began.
        settlement: What it ends with; None as long as that is not known.
        taken_in: Whether whoever held the turn has seen it.
    """

    __slots__ = ("_asleep", "_sleeping", "arrived", "settlement", "taken_in")

    def __init__(self, inputs: CheckedInputs, deadline: float, arrived: float) -> None:
        """Make a request of checked inputs.

        Args:
            inputs: The layout, the columns, and how many rows.
            deadline: On the monotonic clock, in seconds.
            arrived: When the call began.
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
        """Whether its thread still waits."""
        return not self.settled

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once; see ``Request.settle``.

        In this order: should an interrupt come in between, it is either not answered, and can be, or
        answered, and only has to be told (``tell``).
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
        """Let its thread know of the settlement; twice is once."""
        self.settled = True
        self.columns = ()
        self.wake()

    def answer(self) -> Answer:
        """Its answer, once it is settled.

        Raises:
            HeadraceError: Why there is none.
        """
        settlement = self.settlement
        if isinstance(settlement, Answer):
            return settlement
        raise cast("HeadraceError", settlement)

    def expect_sleep(self, sleeping: dict[WaitingRequest, None]) -> None:
        """From now on it can be woken.

        Args:
            sleeping: Who sleeps; whoever wakes it takes it out of there.
        """
        self._sleeping = sleeping
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()

    def sleep(self, seconds: float) -> None:
        """Wait until woken, or for some time."""
        if self._asleep is not None:
            self._asleep.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let its thread go on; twice is once."""
        if self._asleep is not None:
            self._sleeping.pop(self, None)
            try:  # noqa: SIM105 - on every request's way
                self._asleep.release()
            except RuntimeError:
                pass
