"""What the access log says of a call, and which calls it tells of; pure."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from headrace.batching.request import Timings
from headrace.outcomes import Door, Outcome
from headrace.status import OK

_LONGEST_PATH = 256


class Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line; what there is nothing to say of is left out.

    Attributes:
        time: When the call came, in UTC.
        request_id: What the call is called.
        trace_id: Its trace.
        span_id: Its span, or its caller's where it has none of its own.
        protocol: ``REST`` or ``gRPC``.
        client: The other end of its connection.
        caller: Whose key or token it came with, by the name that the operator or the provider gave him.
        method: HTTP's.
        path: Without the query; no more than 256 characters of it.
        status: HTTP's status of the answer; REST only.
        code: gRPC's name of how it ended, for both protocols.
        error: What kind of error it was. What was said about it is not here: it may repeat what was sent.
        model: What was asked.
        version: Which version of it.
        answered_by: ``model``, ``cache`` or ``default``.
        rows: How many the answer has.
        batch_rows: How many were computed together with them.
        batch_requests: How many requests shared the batch.
        seconds: From when it came until it was known what is answered.
        queue_seconds: From when the model was asked until a batch was formed.
        compute_seconds: How long the model took.
        request_bytes: What was asked, decompressed.
        response_bytes: What is answered, before it is compressed.
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
    """Whether a call was refused, failed, or took long: such a one is no matter of chance."""
    return outcome.code is not OK or outcome.status >= 400 or outcome.ended - outcome.arrived >= slow_seconds


def line(outcome: Outcome, unix_offset_seconds: float) -> bytes:
    """A call's line, with its end.

    Args:
        outcome: How it ended.
        unix_offset_seconds: What added to the monotonic clock gives Unix time.
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
                protocol=outcome.door.value,
                client=outcome.caller,
                caller=outcome.key_of,
                method=outcome.method[:_LONGEST_PATH],
                path=_cut(outcome.path),
                status=(outcome.status or outcome.code.http) if outcome.door is Door.REST else 0,
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
    """What JSON can have of a path: one that is no UTF-8 has characters that stand for single bytes."""
    return path[:_LONGEST_PATH].encode("utf-8", "replace").decode()
