"""Read the body length, compression, deadline and request id from a request's headers."""

from __future__ import annotations

import math
import sys
import time

from headrace.base.errors import InvalidRequest, Unsupported
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.calls import REQUEST_ID, Call, GrpcCall, Headers, HttpCall
from headrace.frontends.transport.grpc_framing import timeout_seconds

_TIMEOUT_HEADER = b"x-request-timeout-ms"
_DIGITS_OF_63_BITS = 19


def read_http(call: HttpCall) -> tuple[int, bool]:
    """Read the request id and the deadline, which runs from now, from the headers.

    Returns:
        The declared length of the body in bytes, -1 for none; and whether the body is compressed.

    Raises:
        InvalidRequest: The timeout is not a number above 0.
        Unsupported: The compression is not supported.
    """
    named = dict(call.headers)
    request_id = named.get(REQUEST_ID)
    if request_id is not None:
        call.echo(request_id)
    milliseconds = named.get(_TIMEOUT_HEADER)
    if milliseconds is not None:
        call.deadline = deadline_in(_milliseconds(milliseconds))
    compressed = b"content-encoding" in named and _is_compressed(call.headers)
    return announced_bytes(named.get(b"content-length", b"")), compressed


def read_grpc(call: GrpcCall) -> bytes:
    """Read the request id and the deadline, which runs from now, from the metadata.

    Returns:
        The compression of the messages; empty if not given.

    Raises:
        InvalidRequest: The timeout has another format than gRPC's.
    """
    named = dict(call.headers)
    request_id = named.get(REQUEST_ID)
    if request_id is not None:
        call.echo(request_id)
    timeout = named.get(b"grpc-timeout")
    if timeout is not None:
        call.deadline = deadline_in(timeout_seconds(timeout))
    return named.get(b"grpc-encoding", b"")


def announced_bytes(content_length: bytes) -> int:
    """Return the value of ``content-length``; -1 if it is no number, the largest int if it is too long."""
    if not content_length.isdigit():
        return -1
    return int(content_length) if len(content_length) < _DIGITS_OF_63_BITS else sys.maxsize


def _is_compressed(headers: Headers) -> bool:
    compressed = False
    for name, value in headers:
        if name == b"content-encoding" and value.lower() not in {b"", b"identity"}:
            if value.lower() not in {b"gzip", b"x-gzip", b"deflate"}:
                raise Unsupported(f"content-encoding {value.decode('latin-1')!r} is not supported; use gzip")
            compressed = True
    return compressed


def echo_request_id(call: Call) -> None:
    """Take the request id from the headers, for calls whose other headers are not read."""
    request_id = call.header(REQUEST_ID)
    if request_id is not None:
        call.echo(request_id)


def is_grpc(headers: Headers) -> bool:
    """Return whether a request is a gRPC call, by its ``content-type``."""
    for name, value in headers:
        if name == b"content-type":
            return value.startswith(b"application/grpc") and not value.startswith(b"application/grpc-web")
    return False


def deadline_in(seconds: float) -> float:
    """Return the deadline on the monotonic clock, a little before the client's own.

    A client cancels its call when its own deadline passes. Many cancelled calls look like an attack (rapid
    resets), for which HTTP/2 servers close the whole connection with the innocent calls on it.
    """
    return time.monotonic() + seconds - min(0.005, seconds * 0.1)


def _milliseconds(value: bytes) -> float:
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = math.nan
    if not milliseconds > 0:
        came = value.decode("latin-1")
        raise InvalidRequest(
            f"expected a number of milliseconds above 0, got {came!r:.40}", field="x-request-timeout-ms"
        )
    return milliseconds / 1000 if math.isfinite(milliseconds) else NO_DEADLINE
