"""The calls that codecs receive and the replies they return: bytes and metadata, no sockets, servers or ASGI.

A codec package offers ``http_routes(service)`` and ``grpc_methods(service)``; a transport serves them. A
handler raises ``HeadraceError`` on failure; the transport answers it with the codes of
``headrace.base.status_codes``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np

from headrace.access.permissions import UNDECLARED
from headrace.base.errors import ConfigError, HeadraceError, LoadError, ModelError, Unavailable, without_paths
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE, Origin, Timings
from headrace.telemetry.outcomes import Channel, Outcome, Outcomes

_log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]
ReplyT = TypeVar("ReplyT")

SLICE_BYTES = 256 * 1024
"""Size of the slices in which an answer is copied and given to the transport."""


def told(error: HeadraceError) -> str:
    """Return the text of an error for callers over the network, and log the full text if it differs."""
    text = error.told
    if isinstance(error, ConfigError | LoadError):
        text = without_paths(text)
    if text != error.message and not isinstance(error, ModelError):  # ModelErrors are logged where raised
        _log.warning("error sent to the caller as %r; full text: %s", text, error.message)
    return text


class Budget(Protocol):
    """The byte budget that all calls share."""

    def hold_of_stream(self, size: int) -> None:
        """Take bytes, or raise Overloaded."""

    def release(self, size: int) -> None:
        """Return bytes to the budget."""


class Account:
    """The bytes that one call holds of the shared byte budget; the transport settles it when the call ends.

    Attributes:
        held: Number of bytes held.
    """

    __slots__ = ("_take", "held")

    def __init__(self, take: Callable[[int], None], held: int = 0) -> None:
        """Open an account.

        Args:
            take: Takes bytes from the shared budget, or raises Overloaded.
            held: Number of bytes taken already.
        """
        self._take = take
        self.held = held

    def hold(self, size: int) -> None:
        """Take ``size`` more bytes.

        Raises:
            Overloaded: The shared budget is exhausted.
        """
        self._take(size)
        self.held += size


class Call:
    """The metadata of a request.

    Attributes:
        headers: HTTP headers, or gRPC's metadata: names in lower case, with values, as received.
        deadline: Deadline in seconds on the monotonic clock.
        account: The bytes the call holds of the byte budget; None until an account is opened, or where bytes
            are not counted.
        budget: The byte budget of all calls; None where bytes are not counted.
        notes: Metadata sent with the answer: HTTP headers, or gRPC's trailing metadata.
        channel: The channel by which the call came in.
        outcome: The record of how the call ends; None where nothing records it.
        priority: Priority class; set only if the request names one and access control is on.
    """

    __slots__ = ("account", "budget", "deadline", "headers", "notes", "outcome", "priority")

    channel: Channel
    headers: Headers
    deadline: float
    account: Account | None
    budget: Budget | None
    notes: tuple[tuple[bytes, bytes], ...]
    outcome: Outcome | None
    priority: int

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, or None.

        Args:
            name: Name in lower case.
        """
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def answered_by(self, origin: Origin) -> None:
        """Name the origin of the answer in its metadata."""
        self.notes = (*self.names, (ANSWERED_BY.encode(), origin_text(origin).encode()))

    def failed_in(self, timings: Timings) -> None:
        """Record the times of the batch that failed."""
        if self.outcome is not None:
            self.outcome.timings = timings

    def named(self, request_id: str) -> None:
        """Set the id that is sent back with the answer or the error."""
        self.notes = ((REQUEST_ID, request_id.encode()),)

    def echo(self, request_id: bytes) -> None:
        """Adopt the caller's id for the call, if it is safe to repeat in headers and logs."""
        if _REPEATABLE.fullmatch(request_id):
            self.notes = ((REQUEST_ID, request_id),)
            if self.outcome is not None:
                self.outcome.request_id = request_id.decode()

    @property
    def names(self) -> tuple[tuple[bytes, bytes], ...]:
        """The notes that are also sent with an error: the call's id."""
        return tuple(note for note in self.notes if note[0] == REQUEST_ID)


REQUEST_ID = b"x-request-id"
"""The header, or the key of metadata, that holds a call's id; it is returned with the answer."""

_REPEATABLE = re.compile(rb"[A-Za-z0-9._~:/+=@,-]{1,128}")

ANSWERED_BY = "headrace-answered-by"
"""The header, or the key of trailing metadata, that names who answered, if not the requested model."""


def origin_text(origin: Origin) -> str:
    """Return an origin as clients see it: ``default``, or ``default NAME/VERSION`` for a model's answer."""
    return f"default {origin.model}/{origin.version}" if origin.version else "default"


class HttpCall(Call):
    """One HTTP request whose body has arrived, decompressed and within the limits.

    Attributes:
        method: ``GET``, ``POST``, ….
        path: The decoded path, without the query.
        parameters: The decoded values of the route pattern's ``{names}``; absent optional ones are missing.
        query: The query string, as received.
        body: The whole body; a large one is charged to the account.
    """

    __slots__ = ("body", "method", "parameters", "path", "query")

    channel = Channel.REST

    def __init__(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Headers = (),
        body: bytes = b"",
        query: bytes = b"",
    ) -> None:
        """Describe a request without a deadline or a budget; set those as attributes."""
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
        """Return the account of this call, opened on first use; the transport settles it."""
        if self.account is None and self.budget is not None:
            self.account = Account(self.budget.hold_of_stream)
        return self.account


JSON_HEADERS = ((b"content-type", b"application/json"),)


class HttpReply:
    """One HTTP response.

    Attributes:
        status: The status code.
        body: The whole body.
        headers: Headers without content-length, which the transport adds.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = JSON_HEADERS
    ) -> None:
        """Make a reply; JSON and 200 by default."""
        self.status = status
        self.body = body
        self.headers = headers


class NotReady(Unavailable):
    """A readiness check failed: 503 with the protocol's own body instead of an error body.

    It is raised rather than returned, so that records and metrics count the call as UNAVAILABLE.

    Attributes:
        body: The response body, as JSON.
    """

    def __init__(self, message: str, body: bytes) -> None:
        """Store the message and the response body."""
        super().__init__(message)
        self.body = body


HttpHandler = Callable[[HttpCall], Awaitable[HttpReply]]

HttpStreamHandler = Callable[[HttpCall], AsyncGenerator[bytes, None]]
"""Yields JSON, each of which the transport sends as an event as soon as it is there."""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One path of an HTTP API; exactly one of the handlers is set.

    Attributes:
        method: The HTTP method.
        pattern: The path, for example ``/v1/models/{model}/versions/{version}:predict``. ``{name}`` matches
            one or more characters except slashes and colons. Case is ignored outside the braces.
        handler: Answers a call with one reply.
        verbs: Bits of the verbs of which a key must permit one; without any, every call is refused.
        is_administration: Whether it counts as administration although its verbs also permit other things.
        stream: Answers a call with a stream of server-sent events.
    """

    method: Literal["GET", "POST", "DELETE"]
    pattern: str
    handler: HttpHandler | None
    verbs: int = UNDECLARED
    is_administration: bool = False
    stream: HttpStreamHandler | None = None


class GrpcCall(Call):
    """The metadata of a gRPC call.

    The account, if there is one, counts what the call holds of the byte budget. The call's messages may be
    counted there or directly in the budget, depending on the transport. The budget also covers work that
    continues after the answer.
    """

    __slots__ = ()

    channel = Channel.GRPC

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
        """Return the account of this call, if it has one."""
        return self.account

    def of_message(self) -> GrpcCall:
        """Return a call for one message of a stream, with the stream's metadata."""
        return GrpcCall(self.deadline, self.account, self.budget, self.headers)


# --- serialized answers ---


class Pieces:
    """A serialized message whose large parts are arrays, so that it is sent without a copy of the whole.

    Attributes:
        parts: The parts in order: bytes, or C-contiguous arrays, which must not change.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes | Array]) -> None:
        """Store the parts."""
        self.parts = parts
        self._size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)

    def __len__(self) -> int:
        """Return the size of all parts in bytes."""
        return self._size


class Following(bytes):
    """A response of a stream to a message that has had one: a further part of its answer."""

    __slots__ = ()


def joined(answer: bytes | Pieces) -> bytes:
    """Return an answer as bytes, for transports that accept only bytes and for small answers."""
    return (
        answer
        if isinstance(answer, bytes)
        else b"".join([part if isinstance(part, bytes) else part.tobytes() for part in answer.parts])
    )


def slices(answer: bytes | Pieces) -> Iterator[bytes]:
    """Yield an answer in slices, each copied when it is requested."""
    waiting: list[bytes] = []
    room = SLICE_BYTES
    for part in answer.parts if isinstance(answer, Pieces) else [answer]:
        view = memoryview(part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data)
        start = 0
        while start < len(view):
            piece = view[start : start + room]
            start += len(piece)
            room -= len(piece)
            waiting.append(bytes(piece))
            if not room:
                yield b"".join(waiting)
                waiting.clear()
                room = SLICE_BYTES
    if waiting:
        yield b"".join(waiting)


UnaryHandler = Callable[[bytes, GrpcCall], Awaitable[bytes | Pieces]]
"""One serialized message in, one out; large answers as Pieces, which saves joining them."""

StreamHandler = Callable[[AsyncIterator[bytes], GrpcCall], AsyncIterator[bytes | Pieces]]
"""Serialized messages in, serialized messages out, each as soon as it is available."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """One method of a gRPC service; exactly one of the handlers is set.

    Attributes:
        path: ``/package.Service/Method``.
        unary: Answers one message with one message.
        stream: Answers a stream of messages with a stream of messages.
        takes_views: Whether ``unary`` also takes a memoryview, so that a large message is not copied.
        verbs: As for ``HttpRoute``.
        is_administration: As for ``HttpRoute``.
    """

    path: str
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    takes_views: bool = False
    verbs: int = UNDECLARED
    is_administration: bool = False


# --- streams whose messages are calls ---


class Streamed:
    """A reply to a message that follows in parts, and ends the message's call itself."""


def answering(
    handle: Callable[[bytes, GrpcCall], Awaitable[ReplyT]],
    outcomes: Outcomes,
    response: Callable[[ReplyT], ReplyT],
    error_response: Callable[[bytes, HeadraceError], ReplyT],
) -> Callable[[bytes, GrpcCall], Coroutine[None, None, ReplyT]]:
    """Return a function that answers one message; the error of a message does not end its stream.

    Args:
        handle: Handler of the unary method.
        outcomes: Records the messages as calls.
        response: Makes the stream's response of the unary method's.
        error_response: Makes the response to a message that failed.
    """

    async def answer(message: bytes, of_stream: GrpcCall) -> ReplyT:
        call = of_stream.of_message()
        if of_stream.outcome is not None:
            outcomes.begin_message(call, of_stream.outcome)
        try:
            written = await handle(message, call)
        except HeadraceError as error:
            outcomes.failed(call, error)
            return error_response(message, error)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        if type(written) is not bytes and isinstance(written, Streamed):
            return written
        outcomes.answered(call)
        return response(written)

    return answer
