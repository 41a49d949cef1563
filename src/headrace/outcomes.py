"""How calls end: one Outcome for each, answered or refused, given once to whoever observes.

The metrics are the first observer, and always there: they count in the same place, without a record. The
record, and its id, is made only where somebody else observes, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

from headrace.batching.request import Answer, Origin, Request, Settlement, Timings
from headrace.batching.request import Call as CallOfRequest
from headrace.clock import Clock
from headrace.errors import Cancelled, HeadraceError
from headrace.status import CODES, OK, WRONG_METHOD, Codes, codes

_log = logging.getLogger(__name__)

_ID_BYTES = 16
LEFT = Cancelled("the caller left before there was an answer")
"""Why a call ends whose caller does not wait any more."""

_BROKEN = HeadraceError("internal error; the server's log says more")


class Door(StrEnum):
    """Where a call came in; the values are what metrics call it."""

    REST = "REST"
    GRPC = "gRPC"
    IN_PROCESS = "in process"

    __hash__ = str.__hash__  # Enum's own hashes the name, in Python


class Outcome:
    """How one call ended. Complete, and not to be changed, from when observers are given it.

    Attributes:
        id: 128 bits that this process has drawn; whatever else is said about the call can name it.
        door: Where the call came in.
        caller: The other end of its connection, as ``host:port``; "" in process.
        asked: The model and version that it was handed to; None if it did not come so far. The last one,
            where one call asks several times.
        source: Who gave the answer; None without one, also where no model was asked for one.
        code: The codes it was answered with.
        error: What was said about an error; "" without one.
        arrived: When it came, on the monotonic clock.
        ended: When it was known what is answered. Sending it takes longer, and is not in here.
        timings: Of the batch that gave the answer; None without one.
    """

    __slots__ = (
        "_answer", "arrived", "asked", "caller", "code", "door", "ended", "error", "id", "source", "timings",
    )  # fmt: skip

    def __init__(self, door: Door, caller: str = "") -> None:
        """Begin the record of a call that has come just now."""
        self.id = os.urandom(_ID_BYTES)
        self.door = door
        self.caller = caller
        self.asked: Origin | None = None
        self.source: Origin | None = None
        self.code = OK
        self.error = ""
        self.arrived = self.ended = time.monotonic()
        self.timings: Timings | None = None
        self._answer: asyncio.Future[Answer] | None = None

    def handed_to(self, origin: Origin, answer: asyncio.Future[Answer] | None = None) -> None:
        """Note what was asked.

        Args:
            origin: The model and the version.
            answer: Has the answer when the call ends, if there is one; None where it is ``given``.
        """
        self.asked = origin
        self._answer = answer

    def given(self, answer: Answer) -> None:
        """Note the answer."""
        self.source, self.timings = answer.origin, answer.timings

    def end(self, code: Codes, error: str) -> None:
        """Complete it."""
        self.ended = time.monotonic()
        self.code = code
        self.error = error
        answer, self._answer = self._answer, None
        if code is OK and answer is not None and answer.done():
            self.given(answer.result())


class Call(CallOfRequest, Protocol):
    """What ends in an Outcome.

    Attributes:
        door: Where it came in.
        outcome: The record of it, begun when it came; None where only the metrics observe.
    """

    door: Door
    outcome: Outcome | None


class InProcessCall:
    """A call that nothing came with.

    Attributes:
        door: ``IN_PROCESS``.
        outcome: See ``Call``.
    """

    __slots__ = ("outcome",)

    door = Door.IN_PROCESS

    def __init__(self, outcome: Outcome | None) -> None:
        """Begin."""
        self.outcome = outcome

    def header(self, name: bytes) -> None:
        """There are none."""

    def answered_by(self, origin: Origin) -> None:
        """Nobody is told: the answer itself says it."""


Observer = Callable[[Outcome], object]
"""Gets each Outcome once, in the serving thread, before the answer is sent: it must not take long.

Of a call in a thread that waits it hears shortly after.
"""


class Tally:
    """The first observer: how many calls of one door ended how. The metrics read it.

    Attributes:
        answered: How many were answered.
        failed: How many were not, by code: HTTP's status for REST, the name of gRPC's for the others. All
            that can be are there from the start, so that a rate sees the first error, too.
    """

    __slots__ = ("answered", "failed")

    def __init__(self, door: Door) -> None:
        """Start at nothing."""
        self.answered = 0
        self.failed = dict.fromkeys(sorted({said(door, one) for one in (*CODES.values(), WRONG_METHOD)}), 0)


def said(door: Door, code: Codes) -> str:
    """A code as a door says it: HTTP's status for REST, the name of gRPC's for the others."""
    return str(code.http) if door is Door.REST else code.name


class Outcomes:
    """Where every call ends, once. Serving thread only, but for the calls of threads that wait.

    Whoever takes a call in (a transport, the engine's in-process forms) begins its record if ``observed``,
    and says how it ended with ``answered`` or ``failed``: one of them, once.

    Attributes:
        observed: Whether anybody observes beside the tallies.
    """

    def __init__(self) -> None:
        """Begin with the metrics alone."""
        self.observed = False
        self._tallies = {door: Tally(door) for door in Door}
        self._of_threads = Tally(Door.IN_PROCESS)
        self._lock = threading.Lock()
        self._observers: list[Observer] = []
        self._failing: set[int] = set()  # by id: what is called need not be hashable

    @property
    def tallies(self) -> Mapping[Door, Tally]:
        """Count them all, by door."""
        together = Tally(Door.IN_PROCESS)
        for part in (self._tallies[Door.IN_PROCESS], self._of_threads):
            together.answered += part.answered
            for code, count in part.failed.items():
                together.failed[code] = together.failed.get(code, 0) + count
        return {**self._tallies, Door.IN_PROCESS: together}

    def observe(self, observer: Observer) -> None:
        """Give an observer the Outcome of every call that begins from now on."""
        self._observers.append(observer)
        self.observed = True

    def answered(self, call: Call) -> None:
        """A call ends with an answer."""
        self._tallies[call.door].answered += 1
        if call.outcome is not None:
            self._give(call.outcome, OK, "")

    def failed(self, call: Call, error: BaseException, code: Codes | None = None) -> None:
        """A call ends without an answer.

        Args:
            call: The call.
            error: Why: what is no HeadraceError is a caller who left, or a bug.
            code: What it is answered with, if that is not the error's own.
        """
        known = _as_headrace_error(error)
        code = code or codes(known)
        self._tallies[call.door].failed[said(call.door, code)] += 1
        if call.outcome is not None:
            self._give(call.outcome, code, known.message)

    def ended_in_thread(self, outcome: Outcome | None, ended: Answer | BaseException, clock: Clock) -> None:
        """A call of a thread that waits ends in that thread; observers are told soon, in the serving thread.

        Args:
            outcome: The record of it, if it is observed.
            ended: The answer, or why there is none.
            clock: The serving thread's.
        """
        code, said_of_it = OK, ""
        if not isinstance(ended, Answer):
            known = _as_headrace_error(ended)
            code, said_of_it = codes(known), known.message
        with self._lock:
            if code is OK:
                self._of_threads.answered += 1
            else:
                self._of_threads.failed[code.name] += 1
        if outcome is not None:
            if isinstance(ended, Answer):
                outcome.given(ended)
            outcome.end(code, said_of_it)
            with suppress(RuntimeError):  # the serving thread has ended, and with it whoever observes
                clock.call_soon_threadsafe(self._tell, outcome)

    def _give(self, outcome: Outcome, code: Codes, error: str) -> None:
        outcome.end(code, error)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        for observer in self._observers:
            try:
                observer(outcome)
            except Exception:  # noqa: BLE001 - an observer's own code: no call suffers for it
                if id(observer) not in self._failing:  # else every call would fill the log
                    self._failing.add(id(observer))
                    _log.exception("an observer of outcomes failed; it is told of calls all the same")
            else:
                self._failing.discard(id(observer))


def _as_headrace_error(error: BaseException) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return _BROKEN if isinstance(error, Exception) else LEFT


class SubmittedRequest(Request):
    """A Request that is a call: how it ends is how the call does."""

    __slots__ = ("_call", "_outcomes")

    def begin(self, call: InProcessCall, outcomes: Outcomes, origin: Origin) -> None:
        """Say which call it is.

        Args:
            call: The call.
            outcomes: Where it ends.
            origin: What is asked.
        """
        self.call = self._call = call
        self._outcomes = outcomes
        if call.outcome is not None:
            call.outcome.handed_to(origin)

    def settle(self, settlement: Settlement) -> bool:
        """Answer, once; the call ends with it."""
        was_settled = self.settled
        wanted = super().settle(settlement)
        if was_settled:
            return wanted
        if not wanted:
            self._outcomes.failed(self._call, LEFT)
        elif isinstance(settlement, HeadraceError):
            self._outcomes.failed(self._call, settlement)
        else:
            if self._call.outcome is not None:
                self._call.outcome.given(settlement)
            self._outcomes.answered(self._call)
        return wanted

    def abandon(self) -> None:
        """Nobody waits any more: the call ends, too."""
        if not self.settled:
            self._outcomes.failed(self._call, LEFT)
        super().abandon()
