"""Load reports for balancers, in the format of ORCA (Open Request Cost Aggregation).

Three fields of ``xds.data.orca.v3.OrcaLoadReport`` are set, from which balancers compute a server's weight:
``rps_fractional / (application_utilization + eps / rps_fractional)``.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import NamedTuple

import msgspec

from headrace.batching.capacity import LoadReport

METADATA = "endpoint-load-metrics-bin"
"""The key of gRPC's trailing metadata."""

HEADER = "endpoint-load-metrics"
"""The name of the HTTP header."""

_DOUBLE = 1
_RPS_FRACTIONAL, _EPS, _APPLICATION_UTILIZATION = (number << 3 | _DOUBLE for number in (6, 7, 9))
# A multiple of three bytes, so base64 needs no padding. gRPC sends none, and Envoy requires it.
_MESSAGE = struct.Struct("<BdBdBd")
_DECIMALS = 6


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
        (METADATA, message),
        (METADATA.encode(), b64encode(message)),
        (HEADER.encode(), b"JSON " + msgspec.json.encode(fields)),
    )
