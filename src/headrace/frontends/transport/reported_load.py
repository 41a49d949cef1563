"""The load report that every response carries, encoded in advance: a request pays nothing for it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.batching.capacity import LoadReport

Pairs = tuple[tuple[bytes, bytes], ...]

_OK = (b"grpc-status", b"0")


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
        from headrace.frontends.metrics.orca_load_reports import encoded  # noqa: PLC0415 - needed with load reports only

        metadata, trailer, header = encoded(report)
        self.headers, self.trailers, self.metadata = (header,), (trailer,), (metadata,)
        self.grpc_ok = trailing(_OK, trailer)

    def grpc_ok_with(self, notes: Pairs) -> MutableMapping[str, Any]:
        """Return the last ASGI event of a successful gRPC response that has further trailers."""
        return trailing(_OK, *notes, *self.trailers)


def trailing(*headers: tuple[bytes, bytes]) -> MutableMapping[str, Any]:
    """Return ASGI's event of trailers."""
    return {"type": "http.response.trailers", "headers": [*headers], "more_trailers": False}
