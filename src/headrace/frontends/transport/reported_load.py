"""The load report that every answer carries, ready to be sent: a request pays nothing for it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.batching.capacity import LoadReport

Pairs = tuple[tuple[bytes, bytes], ...]

_OK = (b"grpc-status", b"0")


class ReportedLoad:
    """The last load report; empty until there is one. Copies of an application share it.

    Attributes:
        headers: Of every answer of REST.
        trailers: Of every answer of gRPC.
        metadata: The same for gRPC libraries that encode it themselves.
        grpc_ok: The last ASGI event of a gRPC answer that has no other trailers.
    """

    def __init__(self) -> None:
        """Begin without a report."""
        self.headers: Pairs = ()
        self.trailers: Pairs = ()
        self.metadata: tuple[tuple[str, bytes], ...] = ()
        self.grpc_ok = trailing(_OK)

    def report(self, report: LoadReport) -> None:
        """Replace the report."""
        from headrace.frontends.load_reports import encoded  # noqa: PLC0415 - only where it is wanted

        metadata, trailer, header = encoded(report)
        self.headers, self.trailers, self.metadata = (header,), (trailer,), (metadata,)
        self.grpc_ok = trailing(_OK, trailer)

    def grpc_ok_with(self, notes: Pairs) -> MutableMapping[str, Any]:
        """The last ASGI event of a gRPC answer that has trailers of its own."""
        return trailing(_OK, *notes, *self.trailers)


def trailing(*headers: tuple[bytes, bytes]) -> MutableMapping[str, Any]:
    """ASGI's event of trailers."""
    return {"type": "http.response.trailers", "headers": [*headers], "more_trailers": False}
