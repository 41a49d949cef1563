"""What became of each request: opened when it is sent, closed once, and a table that has to add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended; the value is the head of its column."""

    RIGHT = "answered right"
    REFUSED_RIGHTLY = "invalid, refused"
    REFUSED = "refused, by a fault"
    LOST = "failed with its process"
    UNSENT = "not sent (server down)"
    CUT = "ended by the caller"
    WRONG = "answered wrong"
    REFUSED_UNEXPLAINED = "refused without a fault"
    LOST_UNEXPLAINED = "lost without a fault"
    SILENT = "never answered"


DEFECTS = (Outcome.WRONG, Outcome.REFUSED_UNEXPLAINED, Outcome.LOST_UNEXPLAINED, Outcome.SILENT)
"""What must not be."""

Place = tuple[str, str]
"""A server and a protocol."""


@dataclass(frozen=True)
class Ended:
    """One request that has ended.

    Attributes:
        place: Who was asked, and how.
        outcome: How it ended.
        at_seconds: When, since the beginning.
        took_seconds: How long it took.
        note: What there is to say of it.
    """

    place: Place
    outcome: Outcome
    at_seconds: float
    took_seconds: float
    note: str = ""


class Ledger:
    """All requests.

    Attributes:
        sent: How many were opened, by place.
        ended: Those that were closed, in the order in which they were.
        latest: The number of the last one that was opened.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sent: Counter[Place] = Counter()
        self.ended: list[Ended] = []
        self.latest = 0
        self._open: dict[int, Place] = {}

    def open(self, place: Place) -> int:
        """Note a request that is about to be sent.

        Returns:
            Its number.
        """
        self.latest += 1
        self.sent[place] += 1
        self._open[self.latest] = place
        return self.latest

    def close(
        self, number: int, outcome: Outcome, at_seconds: float, took_seconds: float, note: str = ""
    ) -> None:
        """Note how a request ended.

        Raises:
            ValueError: It was never opened, or has ended already.
        """
        place = self._open.pop(number, None)
        if place is None:
            raise ValueError(f"request {number} is not open: it ended twice, or was never sent")
        self.ended.append(Ended(place, outcome, at_seconds, took_seconds, note))

    @property
    def open_now(self) -> Mapping[int, Place]:
        """Those that have not ended."""
        return self._open


def counted(ledger: Ledger) -> dict[Place, Counter[Outcome]]:
    """How many of each place's requests ended in each way."""
    found: dict[Place, Counter[Outcome]] = {place: Counter() for place in sorted(ledger.sent)}
    for one in ledger.ended:
        found[one.place][one.outcome] += 1
    return found


def disagreements(ledger: Ledger) -> list[str]:
    """Where what was sent is not what ended: empty if the table adds up exactly."""
    return [
        f"{server}, {protocol}: {ledger.sent[server, protocol]} sent, {outcomes.total()} ended"
        for (server, protocol), outcomes in counted(ledger).items()
        if ledger.sent[server, protocol] != outcomes.total()
    ]
