"""How calls end: one Outcome per call, answered or refused, passed once to each observer.

The metrics count every call in the same place and need no record. A record is created only for other
observers, of all calls or of a sample, and for paths that need one.
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

from headrace.access.caller import ASKING
from headrace.base import logs
from headrace.base.addresses import bracketed
from headrace.base.clock import Clock
from headrace.base.errors import Cancelled, HeadraceError
from headrace.base.status_codes import CODES, OK, WRONG_METHOD, Codes, codes
from headrace.base.trace_context import Headers, TraceContext, noted
from headrace.batching.request import Answer, Origin, Request, Settlement, Timings
from headrace.batching.request import Call as CallOfRequest

_log = logging.getLogger(__name__)

_ID_BYTES = 16
LEFT = Cancelled("the caller left before there was an answer")
"""The error of a call whose caller has stopped waiting."""

_INTERNAL_ERROR = HeadraceError("internal error; the server's log says more")


class Channel(StrEnum):
    """The entry point of a call; the values are used in metrics."""

    REST = "REST"
    GRPC = "gRPC"
    IN_PROCESS = "in process"

    __hash__ = str.__hash__  # Enum's own hashes the name, in Python code


Peer = tuple[str, int] | str | None
"""The other end of a connection, as servers report it: host and port, or both as one text."""


class Outcome:
    """How one call ended. Complete and immutable from the time that observers receive it.

    Attributes:
        id: 128 random bits that identify the call in other records.
        channel: The entry point of the call.
        method: The HTTP method; "" in process.
        path: The path without the query; for gRPC ``/package.Service/Method``; "" in process.
        request_id: The request id, the caller's or one made here; "" without one.
        trace: The call's place in a trace; None without one.
        key_of: Name of the caller, by its key or token; "" without one.
        asked: The model and version that the call was handed to; None if it reached no model. The last one,
            if one call makes several requests.
        source: The Origin of the answer; None if no model, cache or default answered.
        code: The codes of the response.
        status: The HTTP status if it differs from that of ``code``; 0 otherwise.
        error: The error message; "" without an error.
        error_type: The name of the error's class; "" without an error.
        arrived: Time of arrival on the monotonic clock.
        handed: Time at which the model was asked; 0.0 if it never was.
        ended: Time at which the response was known. Sending it takes longer and is not included.
        has_ended: Whether the record is complete.
        rows: Number of rows in the answer.
        request_bytes: Size of the request, decompressed; -1 if unknown.
        response_bytes: Size of the response before compression; -1 if unknown.
        timings: Timings of the batch that answered the call, or failed; None without one.
    """

    __slots__ = (
        "_answer", "_peer", "arrived", "asked", "channel", "code", "ended", "error", "error_type", "handed",
        "has_ended", "id", "key_of", "method", "path", "request_bytes", "request_id", "response_bytes",
        "rows", "source", "status", "timings", "trace",
    )  # fmt: skip

    def __init__(self, channel: Channel, peer: Peer = None, method: str = "", path: str = "") -> None:
        """Begin the record of a call that has just arrived.

        Args:
            channel: The entry point of the call.
            peer: The other end of its connection.
            method: The HTTP method.
            path: The path without the query.
        """
        self.id = os.urandom(_ID_BYTES)
        self.channel = channel
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
        """The other end of its connection, as ``host:port``; "" in process or if unknown."""
        if self._peer is None or isinstance(self._peer, str):
            return self._peer or ""
        host, port = self._peer
        return f"{bracketed(host)}:{port}"

    @property
    def answered_by(self) -> str:
        """The kind of the answer's source: ``model``, ``cache`` or ``default``; "" without an answer."""
        if self.source is None:
            return ""
        if self.source.is_default:
            return "default"
        return "cache" if self.source.is_cached else "model"

    @property
    def is_computed(self) -> bool:
        """Whether a model was called; the timings of a repeated answer are meaningless."""
        return self.timings is not None and self.timings.finished > self.timings.started

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Additional fields of log lines written during the call; empty once it has ended."""
        if self.has_ended:
            return {}
        found = {"request_id": self.request_id} if self.request_id else {}
        if self.trace is not None:
            found |= {"trace_id": self.trace.trace_id, "span_id": self.trace.span_id}
        return found

    def handed_to(self, origin: Origin, answer: asyncio.Future[Answer] | None = None) -> None:
        """Record which model is asked.

        Args:
            origin: The model and the version.
            answer: Future of the answer, read when the call ends; None if ``given`` will be called.
        """
        self.asked = origin
        self.handed = time.monotonic()
        self._answer = answer

    def given(self, answer: Answer) -> None:
        """Record the answer."""
        self.source, self.timings, self.rows = answer.origin, answer.timings, answer.rows

    def weighed(self, request_bytes: int, response_bytes: int, status: int = 0) -> None:
        """Record the sizes of request and response, and the HTTP status if ``code`` implies another."""
        self.request_bytes, self.response_bytes, self.status = request_bytes, response_bytes, status

    def end(self, code: Codes, error: HeadraceError | None) -> None:
        """Complete the record."""
        self.ended = time.monotonic()
        self.has_ended = True
        self.code = code
        if error is not None:
            self.error, self.error_type = error.message, type(error).__name__
        answer, self._answer = self._answer, None
        if code is OK and answer is not None and answer.done():
            self.given(answer.result())


class Call(CallOfRequest, Protocol):
    """A call that ends in an Outcome.

    Attributes:
        channel: The entry point of the call.
        outcome: The call's record, begun on arrival; None if none is needed.
    """

    channel: Channel
    outcome: Outcome | None


class ReceivedCall(Call, Protocol):
    """A call that came over the network.

    Attributes:
        headers: HTTP headers, or gRPC's metadata.
    """

    headers: Headers

    def named(self, request_id: str) -> None:
        """Send the request id with the answer or the error."""


class Sampler(Protocol):
    """Selects the calls that an observer receives, before a record is created for them."""

    def sample(self, headers: Headers) -> TraceContext | None:
        """Return the trace context of a selected call; None for the others."""

    def child(self, context: TraceContext) -> TraceContext | None:
        """Return the trace context of a message in a selected stream; None if it is not selected."""


class InProcessCall:
    """A call in process, without headers.

    Attributes:
        channel: ``IN_PROCESS``.
        outcome: See ``Call``.
    """

    __slots__ = ("outcome",)

    channel = Channel.IN_PROCESS

    def __init__(self, outcome: Outcome | None) -> None:
        """Create the call."""
        self.outcome = outcome

    def header(self, name: bytes) -> None:
        """Return None: a call in process has no headers."""

    def answered_by(self, origin: Origin) -> None:
        """Do nothing: the answer itself states its origin."""

    def failed_in(self, timings: Timings) -> None:
        """Record the timings of the batch that failed."""
        if self.outcome is not None:
            self.outcome.timings = timings


Observer = Callable[[Outcome], object]
"""Receives each Outcome once, in the serving thread. It must not take long.

This happens before the answer is sent; for ``Engine.submit``, after its callback. The
Outcome of a call in a calling thread arrives shortly after the call.
"""


class Tally:
    """Counters of one channel's calls by result, read by the metrics.

    Attributes:
        answered: Number of calls that were answered.
        failed: Number of calls that failed, by code: the HTTP status for REST, otherwise the gRPC name. All
            possible codes exist from the start, so that a rate includes the first error.
    """

    __slots__ = ("answered", "failed")

    def __init__(self, channel: Channel) -> None:
        """Start all counters at 0."""
        self.answered = 0
        self.failed = dict.fromkeys(
            sorted({said(channel, one) for one in (*CODES.values(), WRONG_METHOD)}), 0
        )


def said(channel: Channel, code: Codes) -> str:
    """Return a code as a channel shows it: the HTTP status for REST, otherwise the gRPC name."""
    return str(code.http) if channel is Channel.REST else code.name


class Outcomes:
    """The place where each call ends, once. Serving thread only, except for calls in calling threads.

    Code that accepts a call (a transport, or the engine's methods) begins its record if ``observed``. It
    reports the end of the call with either ``answered`` or ``failed``, once.

    Attributes:
        observed: Whether any call may need a record.
        all_observed: Whether an observer receives all calls, not only sampled ones.
    """

    def __init__(self) -> None:
        """Start with the metrics as the only observer."""
        self.observed = self.all_observed = False
        self._names = False
        self._sampler: Sampler | None = None
        self._wants: Callable[[str], bool] = _no_path
        self._tallies = {channel: Tally(channel) for channel in Channel}
        self._thread_tally = Tally(Channel.IN_PROCESS)
        self._lock = threading.Lock()
        self._observers: list[Observer] = []
        self._sampled_observer: Observer = _ignore
        self._failing: set[int] = set()  # by id, as observers need not be hashable

    @property
    def tallies(self) -> Mapping[Channel, Tally]:
        """The counters of all calls, by channel."""
        together = Tally(Channel.IN_PROCESS)
        for part in (self._tallies[Channel.IN_PROCESS], self._thread_tally):
            together.answered += part.answered
            for code, count in part.failed.items():
                together.failed[code] = together.failed.get(code, 0) + count
        return {**self._tallies, Channel.IN_PROCESS: together}

    def observe(self, observer: Observer, *, names: bool = False) -> None:
        """Pass the Outcome of each call that begins from now on to an observer.

        Args:
            observer: Called with each Outcome.
            names: Whether each call gets a request id, also in its response, and records its caller's trace.
        """
        self._observers.append(observer)
        self.observed = self.all_observed = True
        self._names |= names

    def observe_sampled(self, observer: Observer, sampler: Sampler) -> None:
        """Pass the Outcomes of sampled calls from the network to an observer.

        Args:
            observer: Called with each Outcome; there is at most one such observer.
            sampler: Asked when a call arrives. No record is created for calls that it rejects.
        """
        self._sampler, self._sampled_observer = sampler, observer
        self.observed = True

    def record_paths(self, wants: Callable[[str], bool]) -> None:
        """Also begin records of calls from the network whose paths need one.

        Args:
            wants: Returns whether the calls of a path need a record.
        """
        self._wants = wants
        self.observed = True

    def begin(
        self, call: ReceivedCall, method: str, path: str, peer: Peer, *, is_admitted: bool = True
    ) -> None:
        """Begin the record of a call from the network, if one is needed.

        Args:
            call: The call, which receives the record.
            method: The HTTP method.
            path: The path without the query.
            peer: The other end of the connection.
            is_admitted: Whether the call may be sampled for a trace. A call that the gate refuses may not;
                otherwise unauthenticated clients could exhaust the limit on traces.
        """
        trace = None if self._sampler is None or not is_admitted else self._sampler.sample(call.headers)
        if trace is None:
            if not self.all_observed and not self._wants(path):
                return
            if self._names:
                trace = noted(call.headers)
        call.outcome = outcome = Outcome(call.channel, peer, method, path)
        outcome.trace = trace
        if self._names or trace is not None:
            outcome.request_id = outcome.id.hex()
            call.named(outcome.request_id)
            logs.CALL.set(outcome)

    def begin_message(self, call: Call, of_stream: Outcome) -> None:
        """Begin the record of a message that is a call in a stream, if one is needed.

        Args:
            call: The message's call, which receives the record.
            of_stream: The stream's record.
        """
        trace = of_stream.trace
        if trace is not None and trace.is_recorded:
            child = None if self._sampler is None else self._sampler.child(trace)
            if child is None and not self.all_observed:
                return
            trace = child or trace.unrecorded()
        call.outcome = outcome = Outcome(call.channel, of_stream.caller, of_stream.method, of_stream.path)
        outcome.trace, outcome.request_id = trace, of_stream.request_id
        if outcome.log_fields:
            logs.CALL.set(outcome)

    def answered(self, call: Call) -> None:
        """End a call with an answer."""
        self._tallies[call.channel].answered += 1
        if call.outcome is not None:
            self._complete(call.outcome, OK, None)

    def failed(self, call: Call, error: BaseException, code: Codes | None = None) -> None:
        """End a call without an answer.

        Args:
            call: The call.
            error: The reason: a HeadraceError, a bug (any other Exception), or a caller that left (the rest).
            code: The codes of the response, if not the error's own.
        """
        known = _as_headrace_error(error)
        code = code or codes(known)
        self._tallies[call.channel].failed[said(call.channel, code)] += 1
        if call.outcome is not None:
            self._complete(call.outcome, code, known)

    def ended_in_thread(self, outcome: Outcome | None, ended: Answer | BaseException, clock: Clock) -> None:
        """End a call in its calling thread; observers are notified later, in the serving thread.

        Args:
            outcome: The call's record, if it is observed.
            ended: The answer or the error.
            clock: The serving thread's Clock.
        """
        known = None if isinstance(ended, Answer) else _as_headrace_error(ended)
        code = OK if known is None else codes(known)
        with self._lock:
            if code is OK:
                self._thread_tally.answered += 1
            else:
                self._thread_tally.failed[code.name] += 1
        if outcome is not None:
            if isinstance(ended, Answer):
                outcome.given(ended)
            outcome.end(code, known)
            with suppress(RuntimeError):  # the serving thread has ended, and the observers with it
                clock.call_soon_threadsafe(self._notify, outcome)

    def _complete(self, outcome: Outcome, code: Codes, error: HeadraceError | None) -> None:
        outcome.end(code, error)
        self._notify(outcome)

    def _notify(self, outcome: Outcome) -> None:
        is_sampled = outcome.trace is not None and outcome.trace.is_recorded
        for observer in (*self._observers, self._sampled_observer) if is_sampled else self._observers:
            try:
                observer(outcome)
            except Exception:  # noqa: BLE001 - an observer's own code: calls are not affected by its errors
                if id(observer) not in self._failing:  # logging every call would flood the log
                    self._failing.add(id(observer))
                    _log.exception("an observer of outcomes failed; it still receives later outcomes")
            else:
                self._failing.discard(id(observer))


def _no_path(_path: str) -> bool:
    """Select no path: the default while nobody records by path."""
    return False


def _ignore(outcome: Outcome) -> None:
    """Ignore sampled calls: the default while nobody observes them."""


def _as_headrace_error(error: BaseException) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return _INTERNAL_ERROR if isinstance(error, Exception) else LEFT


class SubmittedRequest(Request):
    """A Request that is a call of its own: the call ends when the Request is settled."""

    __slots__ = ("_call", "_outcomes")

    def begin(self, call: InProcessCall, outcomes: Outcomes, origin: Origin) -> None:
        """Attach the call.

        Args:
            call: The call.
            outcomes: The Outcomes in which it ends.
            origin: The model and the version.
        """
        self.call = self._call = call
        self._outcomes = outcomes
        if call.outcome is not None:
            call.outcome.handed_to(origin)

    def settle(self, settlement: Settlement) -> bool:
        """Settle the Request, once; this ends the call."""
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
        """End the call because the caller has stopped waiting."""
        if not self.settled:
            self._outcomes.failed(self._call, LEFT)
        super().abandon()
