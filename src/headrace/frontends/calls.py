"""What a codec sees of a call, and what it gives back: bytes and metadata, never a socket, a server or ASGI.

A codec package offers ``http_routes(service)`` and ``grpc_methods(service)``; a transport serves them. A
handler raises ``HeadraceError`` for what goes wrong; the transport answers it with the codes of
``headrace.status``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.access.verbs import UNDECLARED
from headrace.batching.request import NO_DEADLINE, Origin, Timings
from headrace.errors import ConfigError, HeadraceError, LoadError, ModelError, Unavailable, without_paths
from headrace.frontends.pieces import Pieces
from headrace.outcomes import Door, Outcome

_log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]


def told(error: HeadraceError) -> str:
    """What a caller over the network is told of an error; where that is less than it says, it is logged."""
    text = error.told
    if isinstance(error, ConfigError | LoadError):
        text = without_paths(text)
    if text != error.message and not isinstance(error, ModelError):  # those are logged where they are raised
        _log.warning("a caller is told %r: %s", text, error.message)
    return text


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


class Call:
    """What comes with a request besides what it asks.

    Attributes:
        headers: HTTP headers, or gRPC's metadata: names in lower case, with values, as they came.
        deadline: When the answer loses its worth, on the monotonic clock.
        account: What it holds of the byte budget; None as long as nobody has asked for it, or where that is
            not counted.
        budget: The byte budget of all calls; None where nothing is counted.
        notes: What is said with an answer of its own accord: HTTP headers, or gRPC's trailing metadata.
        door: Where it came in.
        outcome: The record of how it ends; None where nobody wants one.
        priority: Its class; only where it has come with one, and callers take turns.
    """

    __slots__ = ("account", "budget", "deadline", "headers", "notes", "outcome", "priority")

    door: Door
    headers: Headers
    deadline: float
    account: Account | None
    budget: Budget | None
    notes: tuple[tuple[bytes, bytes], ...]
    outcome: Outcome | None
    priority: int

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header.

        Args:
            name: In lower case.
        """
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def answered_by(self, origin: Origin) -> None:
        """Say with the answer who gave it."""
        self.notes = (*self.names, (ANSWERED_BY.encode(), origin_text(origin).encode()))

    def failed_in(self, timings: Timings) -> None:
        """Note the times of the batch that failed."""
        if self.outcome is not None:
            self.outcome.timings = timings

    def named(self, request_id: str) -> None:
        """Say with the answer, or the error, what the call is called."""
        self.notes = ((REQUEST_ID, request_id.encode()),)

    def echo(self, request_id: bytes) -> None:
        """Take the caller's name for the call, if it can be repeated in headers and logs as it is."""
        if _REPEATABLE.fullmatch(request_id):
            self.notes = ((REQUEST_ID, request_id),)
            if self.outcome is not None:
                self.outcome.request_id = request_id.decode()

    @property
    def names(self) -> tuple[tuple[bytes, bytes], ...]:
        """Those notes that are said with an error, too: what the call is called."""
        return tuple(note for note in self.notes if note[0] == REQUEST_ID)


REQUEST_ID = b"x-request-id"
"""The header, or the key of metadata, that names a call; what comes in goes out with the answer."""

_REPEATABLE = re.compile(rb"[A-Za-z0-9._~:/+=@,-]{1,128}")

ANSWERED_BY = "headrace-answered-by"
"""The header, or the key of trailing metadata, that says who answered, if that is not the model asked."""


def origin_text(origin: Origin) -> str:
    """Who gave an answer, as clients are told: ``default``, or ``default NAME/VERSION`` for a model's."""
    return f"default {origin.model}/{origin.version}" if origin.version else "default"


class HttpCall(Call):
    """One HTTP request whose body has arrived, decompressed and within the limits.

    Attributes:
        method: ``GET``, ``POST``, ….
        path: The decoded path, without the query.
        parameters: The values of the route pattern's ``{names}``, decoded; absent optional ones are missing.
        query: The query string, as it came.
        body: The whole body; the account of the byte budget includes a large one.
    """

    __slots__ = ("body", "method", "parameters", "path", "query")

    door = Door.REST

    def __init__(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Headers = (),
        body: bytes = b"",
        query: bytes = b"",
    ) -> None:
        """Describe a request that came without a deadline or a budget; set those as attributes."""
        self.method = method
        self.path = path
        self.parameters = parameters
        self.headers = headers
        self.body = body
        self.query = query
        self.deadline = NO_DEADLINE
        self.account: Account | None = None
        self.budget: Budget | None = None
        self.notes = ()
        self.outcome = None

    def counted(self) -> Account | None:
        """The account of this call, opened when it is first asked for; the transport settles it."""
        if self.account is None and self.budget is not None:
            self.account = Account(self.budget.hold_of_stream)
        return self.account


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


class NotReady(Unavailable):
    """A check was answered with no: 503 and a body of the protocol, which is not that of errors.

    Raised and not returned, so that records and metrics have the call as UNAVAILABLE.

    Attributes:
        body: What is answered, as JSON.
    """

    def __init__(self, message: str, body: bytes) -> None:
        """Say who is not ready, and what is answered."""
        super().__init__(message)
        self.body = body


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
        verbs: A key must permit one of them, as bits; where none is declared, nobody may.
        is_administration: Whether it is administration though its verbs permit other things, too.
    """

    method: Literal["GET", "POST", "DELETE"]
    pattern: str
    handler: HttpHandler
    verbs: int = UNDECLARED
    is_administration: bool = False


class GrpcCall(Call):
    """What comes with a gRPC call besides its messages.

    Its account is what it holds beside its message. The budget is for messages of a call without an account:
    a call may be many messages, and a small one's is made before anybody knows what it takes; and for what
    goes on when the call has had its answer.
    """

    __slots__ = ()

    door = Door.GRPC

    def __init__(
        self,
        deadline: float = NO_DEADLINE,
        account: Account | None = None,
        budget: Budget | None = None,
        headers: Headers = (),
    ) -> None:
        """Describe a call."""
        self.deadline = deadline
        self.account = account
        self.budget = budget
        self.headers = headers
        self.notes = ()
        self.outcome = None

    def counted(self) -> Account | None:
        """The account of this call, if it has one."""
        return self.account

    def of_message(self) -> GrpcCall:
        """The call that one message of a stream is: what comes with the stream comes with each."""
        return GrpcCall(self.deadline, self.account, self.budget, self.headers)


UnaryHandler = Callable[[bytes, GrpcCall], Awaitable[bytes | Pieces]]
"""One serialized message in, one out; in pieces where it is large and would be joined for nothing."""

StreamHandler = Callable[[AsyncIterator[bytes], GrpcCall], AsyncIterator[bytes | Pieces]]
"""Serialized messages in, serialized messages out, each as soon as it is there."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """One method of a gRPC service; exactly one of the handlers is given.

    Attributes:
        path: ``/package.Service/Method``.
        unary: Answers one message with one message.
        stream: Answers a stream of messages with a stream of messages.
        takes_views: Whether ``unary`` also takes a memoryview, so that a large message is not copied.
        verbs: As a route's.
        is_administration: Likewise.
    """

    path: str
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    takes_views: bool = False
    verbs: int = UNDECLARED
    is_administration: bool = False
