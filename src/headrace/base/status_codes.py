"""The only table of the HTTP and gRPC codes of errors."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.errors import (
    Cancelled,
    ConfigError,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    LoadError,
    ModelError,
    NotFound,
    OverLimit,
    PermissionDenied,
    Refused,
    TooLarge,
    Unauthenticated,
    Unsupported,
)


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of an error in the two protocols.

    Attributes:
        http: The HTTP status.
        grpc: The number of the gRPC status.
        name: The gRPC status in capitals, as in TensorFlow Serving's error_code.
    """

    http: int
    grpc: int
    name: str


OK = Codes(200, 0, "OK")
WRONG_METHOD = Codes(405, 12, "UNIMPLEMENTED")

# The HTTP statuses are TensorFlow Serving's, except 413. A full queue is UNAVAILABLE, as there: gRPC clients
# retry that by themselves.
CODES: dict[type[HeadraceError], Codes] = {
    InvalidRequest: Codes(400, 3, "INVALID_ARGUMENT"),
    TooLarge: Codes(413, 8, "RESOURCE_EXHAUSTED"),
    NotFound: Codes(404, 5, "NOT_FOUND"),
    Unauthenticated: Codes(401, 16, "UNAUTHENTICATED"),
    PermissionDenied: Codes(403, 7, "PERMISSION_DENIED"),
    OverLimit: Codes(429, 8, "RESOURCE_EXHAUSTED"),
    FailedPrecondition: Codes(400, 9, "FAILED_PRECONDITION"),
    Conflict: Codes(409, 6, "ALREADY_EXISTS"),
    Refused: Codes(503, 14, "UNAVAILABLE"),
    DeadlineExceeded: Codes(504, 4, "DEADLINE_EXCEEDED"),
    Cancelled: Codes(499, 1, "CANCELLED"),
    Unsupported: Codes(501, 12, "UNIMPLEMENTED"),
    ModelError: Codes(500, 13, "INTERNAL"),
    LoadError: Codes(500, 13, "INTERNAL"),
    ConfigError: Codes(500, 13, "INTERNAL"),
    HeadraceError: Codes(500, 13, "INTERNAL"),
}


def codes(error: HeadraceError) -> Codes:
    """Return the codes of an error: its own class's, or its nearest ancestor's."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
