"""How many requests were answered with an error: by protocol and code, whether a model saw them or not."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.frontends.status import CODES, codes

METHOD_NOT_ALLOWED = 405


class ErrorCounts:
    """Counts what the front ends answer. Serving thread only.

    The codes are those of the one table, so whatever clients make up, there are not more.

    Attributes:
        rest: By HTTP status.
        grpc: By the name of the gRPC status.
    """

    def __init__(self) -> None:
        """Start at nothing, with every code that can be answered: a rate then sees the first error, too."""
        self.rest = dict.fromkeys(sorted({METHOD_NOT_ALLOWED, *(known.http for known in CODES.values())}), 0)
        self.grpc = dict.fromkeys(sorted({known.name for known in CODES.values()}), 0)

    def count_rest(self, status: int) -> None:
        """Count an error that REST answered."""
        self.rest[status] += 1

    def count_grpc(self, error: HeadraceError) -> None:
        """Count an error that gRPC answered; each failed message of a stream is one."""
        self.grpc[codes(error).name] += 1
