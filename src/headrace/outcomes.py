"""How calls end: one Outcome for each, answered or refused, given once to whoever observes.

The metrics are the first observer, and always there: they count in the same place, without a record. The
record, and its id, is made only where somebody else observes, too: all calls, or those that it samples.
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

from headrace import logs
from headrace.access.caller import ASKING
from headrace.batching.request import Answer, Origin, Request, Settlement, Timings
from headrace.batching.request import Call as CallOfRequest
from headrace.clock import Clock
from headrace.errors import Cancelled, HeadraceError
from headrace.status import CODES, OK, WRONG_METHOD, Codes, codes
from headrace.trace_context import Headers, TraceContext, noted

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


Peer = tuple[str, int] | str | None
"""The other end of a connection, as servers tell it: host and port, or both as one text."""


class Outcome:
    """How one call ended. Complete, and not to be changed, from when observers are given it.

    Attributes:
        id: 128 bits that this process has drawn; whatever else is said about the call can name it.
        door: Where the call came in.
        method: HTTP's; "" in process.
        path: Where to, without the query; for gRPC ``/package.Service/Method``; "" in process.
        request_id: What the caller named the call; "" if it did not.
        trace: Its place in a trace; None without one.
        key_of: Whose key it came with, by the name that the operator has given him; "" without one.
        asked: The model and version that it was handed to; None if it did not come so far. The last one,
            where one call asks several times.
        source: Who gave the answer; None without one, also where no model was asked for one.
        code: The codes it was answered with.
        status: HTTP's status, where it is not the one of ``code``; 0 otherwise.
        error: What was said about an error; "" without one.
        error_type: The name of the error's class; "" without one.
        arrived: When it came, on the monotonic clock.
        handed: When the model was asked; 0.0 if it never was.
        ended: When it was known what is answered. Sending it takes longer, and is not in here.
        has_ended: Whether it is complete.
        rows: How many the answer has.
        request_bytes: The size of what was asked, decompressed; -1 where nobody counted.
        response_bytes: The size of what is answered, before it is compressed; -1 where nobody counted.
        timings: Of the batch that gave the answer, or failed to; None without one.
    """

    __slots__ = (
        "_answer", "_peer", "arrived", "asked", "code", "door", "ended", "error", "error_type", "handed",
        "has_ended", "id", "key_of", "method", "path", "request_bytes", "request_id", "response_bytes",
        "rows", "source", "status", "timings", "trace",
    )  # fmt: skip

    def __init__(self, door: Door, peer: Peer = None, method: str = "", path: str = "") -> None:
        """Begin the record of a call that has come just now.

        Args:
            door: Where it came in.
            peer: The other end of its connection.
            method: HTTP's.
            path: Without the query.
        """
        self.id = os.urandom(_ID_BYTES)
        self.door = door
        self._peer = peer
        self.method, self.path = method, path
        self.request_id = ""
        self.trace: TraceContext | None = None
        self.key_of = ASKING.get().name
        self.asked: Origin | None = None
        self.source: Origin | None = None
        self.code = OK
        self.status = 0
        self.error = self.error_type = ""
        self.arrived = self.ended = time.monotonic()
        self.handed = 0.0
        self.has_ended = False
        self.rows, self.request_bytes, self.response_bytes = 0, -1, -1
        self.timings: Timings | None = None
        self._answer: asyncio.Future[Answer] | None = None

    @property
    def caller(self) -> str:
        """The other end of its connection, as ``host:port``; "" in process, and where nobody says."""
        if self._peer is None or isinstance(self._peer, str):
            return self._peer or ""
        host, port = self._peer
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def answered_by(self) -> str:
        """Who gave the answer: ``model``, ``cache`` or ``default``; "" without one."""
        if self.source is None:
            return ""
        if self.source.is_default:
            return "default"
        return "cache" if self.source.is_cached else "model"

    @property
    def is_computed(self) -> bool:
        """Whether a model was called for it; the times of an answer that is only repeated are none."""
        return self.timings is not None and self.timings.finished > self.timings.started

    @property
    def log_fields(self) -> Mapping[str, str]:
        """What log lines that are written inside of the call say beside their own; nothing once it ended."""
        if self.has_ended:
            return {}
        found = {"request_id": self.request_id} if self.request_id else {}
        if self.trace is not None:
            found |= {"trace_id": self.trace.trace_id, "span_id": self.trace.span_id}
        return found

    def handed_to(self, origin: Origin, answer: asyncio.Future[Answer] | None = None) -> None:
        """Note what was asked.

        Args:
            origin: The model and the version.
            answer: Has the answer when the call ends, if there is one; None where it is ``given``.
        """
        self.asked = origin
        self.handed = time.monotonic()
        self._answer = answer

    def given(self, answer: Answer) -> None:
        """Note the answer."""
        self.source, self.timings, self.rows = answer.origin, answer.timings, answer.rows

    def weighed(self, request_bytes: int, response_bytes: int, status: int = 0) -> None:
        """Note how large the request and its answer are, and HTTP's status if it is not the code's."""
        self.request_bytes, self.response_bytes, self.status = request_bytes, response_bytes, status

    def end(self, code: Codes, error: HeadraceError | None) -> None:
        """Complete it."""
        self.ended = time.monotonic()
        self.has_ended = True
        self.code = code
        if error is not None:
            self.error, self.error_type = error.message, type(error).__name__
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


class ReceivedCall(Call, Protocol):
    """A call that came over the network.

    Attributes:
        headers: HTTP headers, or gRPC's metadata.
    """

    headers: Headers

    def named(self, request_id: str) -> None:
        """Say with the answer, or the error, what the call is called."""


class Sampler(Protocol):
    """Chooses the calls that an observer wants to know of, before anything is made for them."""

    def sample(self, headers: Headers) -> TraceContext | None:
        """The place in a trace of a call that is chosen; None for the others."""

    def child(self, context: TraceContext) -> TraceContext | None:
        """The same for a message of a stream that was chosen."""


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

    def failed_in(self, timings: Timings) -> None:
        """Note the times of the batch that failed."""
        if self.outcome is not None:
            self.outcome.timings = timings


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
        all_observed: Whether somebody observes all calls, not only those that are sampled.
    """

    def __init__(self) -> None:
        """Begin with the metrics alone."""
        self.observed = self.all_observed = False
        self._names = False
        self._sampler: Sampler | None = None
        self._wants: Callable[[str], bool] = _nothing
        self._tallies = {door: Tally(door) for door in Door}
        self._of_threads = Tally(Door.IN_PROCESS)
        self._lock = threading.Lock()
        self._observers: list[Observer] = []
        self._of_sampled: Observer = _nobody
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

    def observe(self, observer: Observer, *, names: bool = False) -> None:
        """Give an observer the Outcome of every call that begins from now on.

        Args:
            observer: Is called with it.
            names: Whether calls that come without a name get one, and say which trace they belong to.
        """
        self._observers.append(observer)
        self.observed = self.all_observed = True
        self._names |= names

    def observe_sampled(self, observer: Observer, sampler: Sampler) -> None:
        """Give an observer the Outcomes of calls from the network that a sampler chooses.

        Args:
            observer: Is called with it; one at the most is there.
            sampler: Asked when the call comes. No record is made of those that it leaves out.
        """
        self._sampler, self._of_sampled = sampler, observer
        self.observed = True

    def record_paths(self, wants: Callable[[str], bool]) -> None:
        """Begin a record of calls from the network by their paths, also if nobody observes them.

        Args:
            wants: Whether a path's calls have one.
        """
        self._wants = wants
        self.observed = True

    def begin(
        self, call: ReceivedCall, method: str, path: str, peer: Peer, *, is_admitted: bool = True
    ) -> None:
        """Begin the record of a call from the network, if somebody wants one.

        Args:
            call: The call; gets the record.
            method: HTTP's.
            path: Without the query.
            peer: The other end of the connection.
            is_admitted: Whether it may be chosen for a trace; one that was refused at the gate may not, or
                strangers would use up the traces of all.
        """
        trace = None if self._sampler is None or not is_admitted else self._sampler.sample(call.headers)
        if trace is None:
            if not self.all_observed and not self._wants(path):
                return
            if self._names:
                trace = noted(call.headers)
        call.outcome = outcome = Outcome(call.door, peer, method, path)
        outcome.trace = trace
        if self._names or trace is not None:
            outcome.request_id = outcome.id.hex()
            call.named(outcome.request_id)
            logs.CALL.set(outcome)

    def begin_message(self, call: Call, of_stream: Outcome) -> None:
        """Begin the record of a message that is a call in a stream, if somebody wants one.

        Args:
            call: The message's; gets the record.
            of_stream: That of the stream.
        """
        trace = of_stream.trace
        if trace is not None and trace.is_recorded:
            trace = None if self._sampler is None else self._sampler.child(trace)
            if trace is None and not self.all_observed:
                return
        call.outcome = outcome = Outcome(call.door, of_stream.caller, of_stream.method, of_stream.path)
        outcome.trace, outcome.request_id = trace, of_stream.request_id
        if outcome.log_fields:
            logs.CALL.set(outcome)

    def answered(self, call: Call) -> None:
        """A call ends with an answer."""
        self._tallies[call.door].answered += 1
        if call.outcome is not None:
            self._give(call.outcome, OK, None)

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
            self._give(call.outcome, code, known)

    def ended_in_thread(self, outcome: Outcome | None, ended: Answer | BaseException, clock: Clock) -> None:
        """A call of a thread that waits ends in that thread; observers are told soon, in the serving thread.

        Args:
            outcome: The record of it, if it is observed.
            ended: The answer, or why there is none.
            clock: The serving thread's.
        """
        known = None if isinstance(ended, Answer) else _as_headrace_error(ended)
        code = OK if known is None else codes(known)
        with self._lock:
            if code is OK:
                self._of_threads.answered += 1
            else:
                self._of_threads.failed[code.name] += 1
        if outcome is not None:
            if isinstance(ended, Answer):
                outcome.given(ended)
            outcome.end(code, known)
            with suppress(RuntimeError):  # the serving thread has ended, and with it whoever observes
                clock.call_soon_threadsafe(self._tell, outcome)

    def _give(self, outcome: Outcome, code: Codes, error: HeadraceError | None) -> None:
        outcome.end(code, error)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        is_sampled = outcome.trace is not None and outcome.trace.is_recorded
        for observer in (*self._observers, self._of_sampled) if is_sampled else self._observers:
            try:
                observer(outcome)
            except Exception:  # noqa: BLE001 - an observer's own code: no call suffers for it
                if id(observer) not in self._failing:  # else every call would fill the log
                    self._failing.add(id(observer))
                    _log.exception("an observer of outcomes failed; it is told of calls all the same")
            else:
                self._failing.discard(id(observer))


def _nothing(_path: str) -> bool:
    """What is wanted by path as long as nobody wants anything."""
    return False


def _nobody(outcome: Outcome) -> None:
    """Observes what is sampled as long as nobody else does."""


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
