"""Format the access log's line for a call, and decide which calls are always logged; pure."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from headrace.base.status_codes import OK
from headrace.batching.request import Timings
from headrace.telemetry.outcomes import Channel, Outcome

_LONGEST_PATH = 256


class Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line of the access log; fields without a value are omitted.

    Attributes:
        time: Arrival of the call, in UTC.
        request_id: Request id.
        trace_id: Id of the trace.
        span_id: Id of the call's span, or of its caller's if it has no span of its own.
        protocol: ``REST`` or ``gRPC``.
        client: Peer of the connection.
        caller: Name of the caller by key or token, as given by the operator or the provider.
        method: HTTP method.
        path: Path without the query, at most 256 characters of it.
        status: HTTP status of the response; REST only.
        code: Name of the gRPC status code, for both protocols.
        error: Class of the error. Its message is omitted, as it may repeat data of the request.
        model: Model that was requested.
        version: Version of the model.
        answered_by: ``model``, ``cache`` or ``default``.
        rows: Number of rows in the answer.
        batch_rows: Number of rows in the batch.
        batch_requests: Number of requests in the batch.
        seconds: Time from the arrival of the call until its answer was known.
        queue_seconds: Time from the submission to the model until a batch was formed.
        compute_seconds: Time that the model took.
        request_bytes: Size of the request, decompressed.
        response_bytes: Size of the response before compression.
    """

    time: str
    request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    protocol: str
    client: str = ""
    caller: str = ""
    method: str
    path: str
    status: int = 0
    code: str
    error: str = ""
    model: str = ""
    version: int = 0
    answered_by: str = ""
    rows: int = 0
    batch_rows: int = 0
    batch_requests: int = 0
    seconds: float
    queue_seconds: float | None = None
    compute_seconds: float | None = None
    request_bytes: int = -1
    response_bytes: int = -1


def is_always_told(outcome: Outcome, slow_seconds: float) -> bool:
    """Return whether a call is logged regardless of sampling: it was refused, failed, or took long."""
    return outcome.code is not OK or outcome.status >= 400 or outcome.ended - outcome.arrived >= slow_seconds


def line(outcome: Outcome, unix_offset_seconds: float) -> bytes:
    """Return the line for a call, with its line end.

    Args:
        outcome: Outcome of the call.
        unix_offset_seconds: Offset from the monotonic clock to Unix time.
    """
    came = datetime.fromtimestamp(outcome.arrived + unix_offset_seconds, UTC)
    trace, asked = outcome.trace, outcome.asked
    timings = outcome.timings if outcome.is_computed else None
    return (
        msgspec.json.encode(
            Line(
                time=came.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                request_id=outcome.request_id,
                trace_id="" if trace is None else trace.trace_id,
                span_id="" if trace is None else trace.span_id,
                protocol=outcome.channel.value,
                client=outcome.caller,
                caller=outcome.key_of,
                method=outcome.method[:_LONGEST_PATH],
                path=_cut(outcome.path),
                status=(outcome.status or outcome.code.http) if outcome.channel is Channel.REST else 0,
                code=outcome.code.name,
                error=outcome.error_type,
                model="" if asked is None else asked.model,
                version=0 if asked is None else asked.version,
                answered_by=outcome.answered_by,
                rows=outcome.rows,
                batch_rows=0 if timings is None else timings.rows,
                batch_requests=0 if timings is None else timings.requests,
                seconds=_rounded(outcome.ended - outcome.arrived),
                queue_seconds=None if timings is None else _queued(outcome, timings),
                compute_seconds=None if timings is None else _rounded(timings.finished - timings.started),
                request_bytes=outcome.request_bytes,
                response_bytes=outcome.response_bytes,
            )
        )
        + b"\n"
    )


def _queued(outcome: Outcome, timings: Timings) -> float:
    return _rounded(max(0.0, timings.formed - outcome.handed))


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _cut(path: str) -> str:
    """Return the start of a path in valid UTF-8; characters that stand for invalid bytes are replaced."""
    return path[:_LONGEST_PATH].encode("utf-8", "replace").decode()
