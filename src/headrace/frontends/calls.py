"""What a codec sees of a call, and what it gives back: bytes and metadata, never a socket, a server or ASGI.

A codec package offers ``http_routes(service)`` and ``grpc_methods(service)``; a transport serves them. A
handler raises ``HeadraceError`` for what goes wrong; the transport answers it with the codes of
``headrace.frontends.status``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.batching.request import NO_DEADLINE

Headers = Iterable[tuple[bytes, bytes]]


class Budget(Protocol):
    """The bytes that all calls together may hold."""

    def hold_of_stream(self, size: int) -> None:
        """Take bytes, or raise Overloaded."""

    def release(self, size: int) -> None:
        """Give bytes back."""


class Account:
    """What one call holds of the byte budget of all calls; the transport settles it when the call has ended.

    Attributes:
        held: How many bytes.
    """

    __slots__ = ("_take", "held")

    def __init__(self, take: Callable[[int], None], held: int = 0) -> None:
        """Begin with what is held already.

        Args:
            take: Takes bytes from the budget of all, or raises Overloaded.
            held: How many bytes have been taken before.
        """
        self._take = take
        self.held = held

    def hold(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            Overloaded: All calls together would hold too many.
        """
        self._take(size)
        self.held += size


class HttpCall:
    """One HTTP request whose body has arrived, decompressed and within the limits.

    Attributes:
        method: ``GET``, ``POST``, ….
        path: The decoded path, without the query.
        parameters: The values of the route pattern's ``{names}``, decoded; absent optional ones are missing.
        query: The query string, as it came.
        headers: Names in lower case, with values, as they came.
        body: The whole body.
        deadline: When the answer loses its worth, on the monotonic clock.
        account: What it holds of the byte budget, its body included; None as long as nobody has asked for it.
        budget: The byte budget of all calls; None where nothing is counted.
    """

    __slots__ = (
        "account",
        "body",
        "budget",
        "deadline",
        "headers",
        "method",
        "parameters",
        "path",
        "query",
    )

    def __init__(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Headers = (),
        body: bytes = b"",
    ) -> None:
        """Describe a request that came without a query or a deadline; set those as attributes."""
        self.method = method
        self.path = path
        self.parameters = parameters
        self.headers = headers
        self.body = body
        self.query = b""
        self.deadline = NO_DEADLINE
        self.account: Account | None = None
        self.budget: Budget | None = None

    def counted(self) -> Account | None:
        """The account of this call, opened when it is first asked for; the transport settles it."""
        if self.account is None and self.budget is not None:
            self.account = Account(self.budget.hold_of_stream, len(self.body))
        return self.account

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header.

        Args:
            name: In lower case.
        """
        for key, value in self.headers:
            if key == name:
                return value
        return None


JSON_HEADERS = ((b"content-type", b"application/json"),)


class HttpReply:
    """One HTTP response.

    Attributes:
        status: The status code.
        body: The whole body.
        headers: Without content-length, which the transport adds.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = JSON_HEADERS
    ) -> None:
        """Make a reply; JSON and 200 unless said otherwise."""
        self.status = status
        self.body = body
        self.headers = headers


HttpHandler = Callable[[HttpCall], Awaitable[HttpReply]]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One path of an HTTP API.

    Attributes:
        method: The HTTP method.
        pattern: The path, with ``{name}`` for one segment's worth of characters (no slash; nor a colon, where
            a colon follows in the pattern), for example ``/v1/models/{model}/versions/{version}:predict``.
            Matched without regard to case outside the braces.
        handler: Answers it.
    """

    method: Literal["GET", "POST", "DELETE"]
    pattern: str
    handler: HttpHandler


class GrpcCall:
    """What comes with a gRPC call besides its messages.

    Attributes:
        deadline: When the answer loses its worth, on the monotonic clock.
        account: What the call holds of the byte budget beside its message; None where that is not counted.
        budget: The byte budget of all calls, for messages of a call without an account: a call may be many
            messages, and a small one's is made before anybody knows what it takes; None where nothing counts.
    """

    __slots__ = ("account", "budget", "deadline")

    def __init__(
        self,
        deadline: float = NO_DEADLINE,
        account: Account | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Describe a call."""
        self.deadline = deadline
        self.account = account
        self.budget = budget

    def counted(self) -> Account | None:
        """The account of this call, if it has one."""
        return self.account


UnaryHandler = Callable[[bytes, GrpcCall], Awaitable[bytes]]
"""One serialized message in, one out."""

StreamHandler = Callable[[AsyncIterator[bytes], GrpcCall], AsyncIterator[bytes]]
"""Serialized messages in, serialized messages out, each as soon as it is there."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """One method of a gRPC service; exactly one of the handlers is given.

    Attributes:
        path: ``/package.Service/Method``.
        unary: Answers one message with one message.
        stream: Answers a stream of messages with a stream of messages.
    """

    path: str
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
