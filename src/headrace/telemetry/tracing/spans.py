"""Describe the spans of a call, and of batches: Outcomes in terms of OpenTelemetry's semantic conventions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.base.status_codes import OK
from headrace.base.trace_context import TraceContext
from headrace.batching.request import Origin, Timings
from headrace.telemetry.outcomes import Channel, Outcome

Value = str | int | float | bool

QUEUE, BATCH, COMPUTE = "queue", "batch", "compute"
"""Parts of a request: until a batch is formed, until the model is called, until it has returned."""

# gRPC codes that are server errors by OpenTelemetry's semantic conventions.
_SERVER_ERRORS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
_LONGEST_PATH, _LONGEST_ERROR = 256, 512
_OTHER = "_OTHER"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})


class SpanData(NamedTuple):
    """One span.

    Attributes:
        name: Name of the operation, without details that differ between calls.
        context: Trace context, which names the trace, the span and its parent.
        start: Start on the monotonic clock.
        end: End on the monotonic clock.
        attributes: Attributes of the span.
        is_server: Whether the span is a call from the network.
        error: Error message; None unless the server is at fault.
        links: Spans of other traces.
    """

    name: str
    context: TraceContext
    start: float
    end: float
    attributes: Mapping[str, Value]
    is_server: bool = False
    error: str | None = None
    links: Sequence[TraceContext] = ()


class Routes:
    """Names REST calls by their routes, so that similar calls have the same name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Compile the routes.

        Args:
            patterns: Paths with ``{names}``; the first match is a path's route.
        """
        self._routes = [(pattern, _compiled(pattern)) for pattern in patterns]

    def of(self, path: str) -> str:
        """Return the route of a path; "" if it has none, or is longer than 256 characters."""
        if len(path) <= _LONGEST_PATH:
            for pattern, compiled in self._routes:
                if compiled.fullmatch(path):
                    return pattern
        return ""


def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"\{\w+\}", pattern)
    return re.compile("[^/:]+".join(map(re.escape, pieces)), re.IGNORECASE)


class Describer:
    """Makes the spans of calls."""

    def __init__(self, routes: Routes, methods: Iterable[str], scheme: str = "http") -> None:
        """Describe the calls of a server.

        Args:
            routes: Routes of REST.
            methods: Paths of the gRPC methods.
            scheme: ``http`` or ``https``.
        """
        self._routes, self._methods, self._scheme = routes, frozenset(methods), scheme

    def call(self, outcome: Outcome, context: TraceContext) -> SpanData:
        """Return the span of the call itself."""
        attributes: dict[str, Value] = {"headrace.request_id": outcome.request_id}
        if outcome.channel is Channel.GRPC:
            name, error = self._grpc(outcome, attributes)
        else:
            name, error = self._http(outcome, attributes)
        host, _, port = outcome.caller.rpartition(":")
        if host:
            attributes |= {"client.address": host.strip("[]"), "client.port": int(port)}
        if outcome.key_of:
            attributes["enduser.id"] = outcome.key_of
        if outcome.code is not OK:
            attributes["error.type"] = outcome.error_type
        attributes |= _model_attributes(outcome)
        return SpanData(
            name,
            context,
            outcome.arrived,
            outcome.ended,
            attributes,
            is_server=True,
            error=outcome.error[:_LONGEST_ERROR] if error else None,
        )

    def _grpc(self, outcome: Outcome, attributes: dict[str, Value]) -> tuple[str, bool]:
        is_known = outcome.path in self._methods
        method = outcome.path.lstrip("/") if is_known else _OTHER
        attributes |= {
            "rpc.system.name": "grpc",
            "rpc.method": method,
            "rpc.response.status_code": outcome.code.name,
        }
        if not is_known:
            attributes["rpc.method_original"] = outcome.path.lstrip("/")[:_LONGEST_PATH]
        return method if is_known else "grpc", outcome.code.name in _SERVER_ERRORS

    def _http(self, outcome: Outcome, attributes: dict[str, Value]) -> tuple[str, bool]:
        method = outcome.method if outcome.method in _METHODS else _OTHER
        status = outcome.status or outcome.code.http
        attributes |= {
            "http.request.method": method,
            "url.path": outcome.path[:_LONGEST_PATH],
            "url.scheme": self._scheme,
            "http.response.status_code": status,
        }
        route = self._routes.of(outcome.path)
        if route:
            attributes["http.route"] = route
        for name, size in (("request", outcome.request_bytes), ("response", outcome.response_bytes)):
            if size >= 0:
                attributes[f"http.{name}.body.size"] = size
        verb = "HTTP" if method == _OTHER else method
        return f"{verb} {route}" if route else verb, status >= 500


def _model_attributes(outcome: Outcome) -> dict[str, Value]:
    """Return the attributes of the requested model, and of the answer's origin."""
    found: dict[str, Value] = {}
    if outcome.asked is not None:
        found |= {"headrace.model.name": outcome.asked.model, "headrace.model.version": outcome.asked.version}
    source, timings = outcome.source, outcome.timings
    if source is None:
        return found
    found["headrace.rows"] = outcome.rows
    found["headrace.answered_by"] = outcome.answered_by
    if source.is_default and source.version:
        found |= {
            "headrace.default.model.name": source.model,
            "headrace.default.model.version": source.version,
        }
    if timings is not None and outcome.is_computed:
        found |= {"headrace.batch.rows": timings.rows, "headrace.batch.requests": timings.requests}
    return found


def parts(outcome: Outcome, context: TraceContext, batch: BatchSpan) -> list[SpanData]:
    """Return the spans of the parts of a computed call, in order.

    A call that joined an equal one in flight may have arrived after these parts began. Each is cut to begin
    when the call was handed to the model, or later.

    Args:
        outcome: Outcome of the call.
        context: Trace context of the call.
        batch: Batch that computed it.
    """
    timings = batch.timings
    bounds = (
        (QUEUE, outcome.handed, timings.formed),
        (BATCH, timings.formed, timings.started),
        (COMPUTE, timings.started, timings.finished),
    )
    return [
        SpanData(
            name,
            context.child(),
            max(start, outcome.handed),
            max(end, outcome.handed),
            {},
            links=(batch.context,) if name == COMPUTE else (),
        )
        for name, start, end in bounds
    ]


def batch_span(batch: BatchSpan) -> SpanData:
    """Return the span of a batch."""
    origin, timings = batch.origin, batch.timings
    return SpanData(
        f"batch {origin.model}",
        batch.context,
        timings.formed,
        timings.finished,
        {
            "headrace.model.name": origin.model,
            "headrace.model.version": origin.version,
            "headrace.batch.rows": timings.rows,
            "headrace.batch.requests": timings.requests,
            "headrace.batch.compute_seconds": _compute_seconds(timings),
        },
        links=tuple(batch.links),
    )


def _compute_seconds(timings: Timings) -> float:
    return round(timings.finished - timings.started, 9)


# The span of a batch links to the recorded requests of its batch, which end one after another.

MOST_LINKS = 128
"""Largest number of requests linked by the span of a batch; OpenTelemetry's own limit of links."""

_MOST_HELD = 4096
_MOST_SENT = 4096


class BatchSpan:
    """A batch with at least one recorded request; it has a trace of its own.

    Attributes:
        context: Trace context of its span.
        origin: Model and version that computed it.
        timings: Times of the batch, and its numbers of rows and requests.
        links: Trace contexts of its recorded requests.
        since: Time at which the first of them was added, on the monotonic clock.
    """

    __slots__ = ("context", "links", "origin", "since", "timings")

    def __init__(self, origin: Origin, timings: Timings, since: float) -> None:
        """Start without requests."""
        self.context = TraceContext(None, is_recorded=True)
        self.origin = origin
        self.timings = timings
        self.links: list[TraceContext] = []
        self.since = since

    @property
    def is_whole(self) -> bool:
        """Whether as many requests are linked as the batch had; only calls that joined one can follow."""
        return len(self.links) >= self.timings.requests


class Batches:
    """The batches that wait for further requests."""

    def __init__(self, wait_seconds: float) -> None:
        """Start without batches.

        Args:
            wait_seconds: How long a batch is held for further recorded requests, whose number is unknown.
        """
        self._wait_seconds = wait_seconds
        self._held: dict[Timings, BatchSpan] = {}
        self._sent: dict[Timings, TraceContext] = {}

    def join(self, origin: Origin, timings: Timings, request: TraceContext, now: float) -> BatchSpan:
        """Add a request to its batch, and return the batch.

        ``due`` returns each batch once. A late request still refers to the span of its batch, which has no
        link to the request.

        Args:
            origin: Model and version that computed the batch.
            timings: Timings object of the batch, which identifies it.
            request: Trace context of the request.
            now: Current time on the monotonic clock.
        """
        batch = self._held.get(timings)
        if batch is None:
            batch = BatchSpan(origin, timings, now)
            if (sent := self._sent.get(timings)) is not None:
                batch.context = sent
                return batch
            self._held[timings] = batch
        if len(batch.links) < MOST_LINKS:
            batch.links.append(request)
        return batch

    def due(self, now: float, *, is_last: bool = False) -> list[BatchSpan]:
        """Remove and return the batches that need not wait any longer; all of them if ``is_last``."""
        too_many = len(self._held) - _MOST_HELD
        found = [
            batch
            for place, batch in enumerate(self._held.values())
            if is_last or place < too_many or batch.is_whole or now - batch.since >= self._wait_seconds
        ]
        for batch in found:
            del self._held[batch.timings]
            self._sent[batch.timings] = batch.context
        for timings in list(self._sent)[: max(0, len(self._sent) - _MOST_SENT)]:
            del self._sent[timings]
        return found
