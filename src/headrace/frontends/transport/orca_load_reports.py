"""Load reports for balancers, in the format of ORCA (Open Request Cost Aggregation).

Three fields of ``xds.data.orca.v3.OrcaLoadReport`` are set, from which balancers compute a server's weight:
``rps_fractional / (application_utilization + eps / rps_fractional)``. A report is encoded once for all the
responses that carry it, so a request pays nothing for it.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import msgspec

from headrace.batching.capacity import LoadReport

Pairs = tuple[tuple[bytes, bytes], ...]

_METADATA = "endpoint-load-metrics-bin"
"""The key of gRPC's trailing metadata."""

_HEADER = "endpoint-load-metrics"
"""The name of the HTTP header."""

_DOUBLE = 1
_RPS_FRACTIONAL, _EPS, _APPLICATION_UTILIZATION = (number << 3 | _DOUBLE for number in (6, 7, 9))
# A multiple of three bytes, so base64 needs no padding. gRPC sends none, and Envoy requires it.
_MESSAGE = struct.Struct("<BdBdBd")
_DECIMALS = 6
_OK = (b"grpc-status", b"0")


class Encoded(NamedTuple):
    """A load report in the encodings that answers carry.

    Attributes:
        metadata: Trailing metadata for a gRPC library, which encodes the bytes itself.
        trailer: The same on the wire, in base64.
        header: The HTTP header, in JSON.
    """

    metadata: tuple[str, bytes]
    trailer: tuple[bytes, bytes]
    header: tuple[bytes, bytes]


def encoded(report: LoadReport) -> Encoded:
    """Encode a report.

    Args:
        report: The report.
    """
    rate, errors, load = report.requests_per_second, report.errors_per_second, report.load
    message = _MESSAGE.pack(_RPS_FRACTIONAL, rate, _EPS, errors, _APPLICATION_UTILIZATION, load)
    fields = {
        "application_utilization": round(load, _DECIMALS),
        "rps_fractional": round(rate, _DECIMALS),
        "eps": round(errors, _DECIMALS),
    }
    return Encoded(
        (_METADATA, message),
        (_METADATA.encode(), b64encode(message)),
        (_HEADER.encode(), b"JSON " + msgspec.json.encode(fields)),
    )


class ReportedLoad:
    """The latest load report; empty until there is one. Copies of an application share it.

    Attributes:
        headers: Headers of every REST response.
        trailers: Trailers of every gRPC response.
        metadata: The same trailers, for gRPC libraries that encode metadata themselves.
        grpc_ok: Last ASGI event of a successful gRPC response that has no other trailers.
    """

    def __init__(self) -> None:
        """Start without a report."""
        self.headers: Pairs = ()
        self.trailers: Pairs = ()
        self.metadata: tuple[tuple[str, bytes], ...] = ()
        self.grpc_ok = trailing(_OK)

    def report(self, report: LoadReport) -> None:
        """Replace the report."""
        metadata, trailer, header = encoded(report)
        self.headers, self.trailers, self.metadata = (header,), (trailer,), (metadata,)
        self.grpc_ok = trailing(_OK, trailer)

    def grpc_ok_with(self, notes: Pairs) -> MutableMapping[str, Any]:
        """Return the last ASGI event of a successful gRPC response that has further trailers."""
        return trailing(_OK, *notes, *self.trailers)


def trailing(*headers: tuple[bytes, bytes]) -> MutableMapping[str, Any]:
    """Return ASGI's event of trailers."""
    return {"type": "http.response.trailers", "headers": [*headers], "more_trailers": False}
