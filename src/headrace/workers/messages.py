"""Messages between the supervisor and a worker, and the channel that carries them.

Both ends must be of the same release.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace import __version__
from headrace.batching.capacity import LoadReport
from headrace.batching.statistics import VersionCounts
from headrace.config import ModelConfig, ServerConfig
from headrace.lifecycle.version_states import VersionStatus

_log = logging.getLogger(__name__)

LARGEST_MESSAGE_BYTES = 2**27
"""Size limit of a message; the metrics of many thousands of models fit."""

RELEASE = f"{__version__}/10"
"""Release and version of the message format; increment the number after the slash with each change.

A worker compares it with its own before it decodes any message.
"""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker: its parameters.

    Attributes:
        worker: Index of the worker, from 0.
        models: The directory of models.
        config: The worker's settings, with limits divided among the workers.
        sockets: Descriptors of its listening sockets, for REST and for gRPC.
        workers: Number of workers.
        announces: Whether this worker prints the served models; one worker does.
        json: Whether it prints them as JSON rather than as text.
        begun: Start of the command on the monotonic clock.
        waits: Whether it accepts connections only after it has tried to load its models: the server has been
            ready before, so other workers answer. After ``Alone`` it waits only briefly.
        fills: Whether it fills the archive.
        keeper: Descriptor of the keeper's socket for sealed copies; None if the worker makes its own.
        callers: Descriptor of the shared memory in which callers are counted; -1 for none.
        shown: The path that is printed for the models; None for that of their directory.
    """

    worker: int
    models: Path | None
    config: ServerConfig
    sockets: tuple[int, int]
    workers: int
    announces: bool
    json: bool
    begun: float
    waits: bool
    fills: bool
    keeper: int | None
    callers: int = -1
    shown: Path | None = None


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Periodic message to a worker, echoed by its serving thread to show that it is alive.

    Attributes:
        report: Load of all workers; in the echo, that of the worker. None if load is not reported or unknown.
    """

    report: LoadReport | None = None


class Alone(msgspec.Struct, frozen=True, tag=True):
    """To a worker that does not serve yet: accept connections soon, because no other worker answers."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To a worker: end each connection with its next answer.

    Attributes:
        is_followed: Whether another server accepts new connections; the worker then still reports ready.
    """

    is_followed: bool = False


class Finish(msgspec.Struct, frozen=True, tag=True):
    """To a worker: no new connections arrive; answer all requests, unload the models, and exit.

    Attributes:
        until: End of the drain time on the monotonic clock.
        first_seconds: Time for clients that are connected but have had no answer to send a request.
    """

    until: float
    first_seconds: float = 0.0


class Serving(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it accepts connections."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot start.

    Attributes:
        message: The reason.
        wrong: Whether a setting is wrong, so that a retry cannot help.
    """

    message: str
    wrong: bool


class ModelState(msgspec.Struct, frozen=True):
    """State of one model, in one worker or merged over all.

    Attributes:
        versions: Its versions, newest first.
        answers: Whether one of them answers; if merged, whether one does in each worker.
        problems: Messages on how the model differs from what the operator asked for.
    """

    versions: tuple[VersionStatus, ...]
    answers: bool
    problems: tuple[str, ...]


class States(msgspec.Struct, frozen=True, tag=True):
    """From a worker: changed states of its models.

    Attributes:
        models: States by model name; None for a model that it no longer knows.
        ready: Whether its models have been tried and one is ready.
    """

    models: dict[str, ModelState | None]
    ready: bool


class View(msgspec.Struct, frozen=True, tag=True):
    """To a worker: changed states of models, merged over all workers.

    Attributes:
        models: States by model name; None for a model that no worker knows any more.
        ready: Whether the server is ready.
    """

    models: dict[str, ModelState | None]
    ready: bool


class WantedModel(msgspec.Struct, frozen=True):
    """Wanted state of one model.

    Attributes:
        versions: As in ``Wanted``.
        config: As in ``Wanted``, with the size of its cache divided among the workers.
        labels: As in ``Wanted``.
        fingerprints: As in ``Wanted``.
        problem: As in ``Wanted``.
    """

    versions: dict[int, Path]
    config: ModelConfig
    labels: dict[str, int]
    fingerprints: dict[int, int | None]
    problem: str


class Wants(msgspec.Struct, frozen=True, tag=True):
    """To a worker: the complete wanted state; models left out are not wanted.

    Attributes:
        models: Wanted state by model name.
        unusable: Names that cannot be used as models, with the reasons.
    """

    models: dict[str, WantedModel]
    unusable: dict[str, str]


class Act(msgspec.Struct, frozen=True, tag=True):
    """Load or unload a model: from the worker that has done so for a client, then to all workers.

    Attributes:
        model: The model's name.
        unload: Whether to unload it; otherwise it is loaded, and failed versions are retried.
        is_own: Whether the receiving worker is the one that sent it.
    """

    model: str
    unload: bool
    is_own: bool = False


class Scrape(msgspec.Struct, frozen=True, tag=True):
    """Request for metrics: from a worker for those of all workers, and to each worker for its own.

    Attributes:
        number: Number of the request, repeated in the response.
    """

    number: int


class Scraped(msgspec.Struct, frozen=True, tag=True):
    """The response to ``Scrape``.

    Attributes:
        number: Number of the request.
        text: Metrics in Prometheus' text format.
    """

    number: int
    text: bytes


class Count(msgspec.Struct, frozen=True, tag=True):
    """Request for counts: from a worker for those of all others, and to each of these for its own.

    Attributes:
        number: Number of the request, repeated in the response.
        models: Names of the models.
        version: The version; None for all that are ready.
    """

    number: int
    models: tuple[str, ...]
    version: int | None


class Counted(msgspec.Struct, frozen=True, tag=True):
    """The response to ``Count``.

    Attributes:
        number: Number of the request.
        counts: The counts, by version.
    """

    number: int
    counts: tuple[VersionCounts, ...]


Message = (
    Begin
    | Beat
    | Alone
    | Drain
    | Finish
    | Serving
    | Failed
    | States
    | View
    | Wants
    | Act
    | Scrape
    | Scraped
    | Count
    | Counted
)


def _encode_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no message may contain {type(value).__name__}")


def _decode_path(kind: type[Any], value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise TypeError(f"no message may contain {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_path)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_decode_path)


def encoded(message: Message) -> bytes:
    """Return a message's bytes."""
    return _encoder.encode(message)


def decoded(content: bytes | memoryview) -> Message:
    """Decode a message.

    Raises:
        msgspec.MsgspecError: The bytes are not a valid message.
    """
    try:
        return _decoder.decode(content)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text is not UTF-8: {error}") from error


_LENGTH = struct.Struct("<I")
_MOST_UNREAD_BYTES = 2 * LARGEST_MESSAGE_BYTES


class Channel(asyncio.Protocol):
    """One end of a channel: length-prefixed messages in both directions over a Unix socket pair.

    Messages arrive in the order in which they were sent.

    Attributes:
        closed: Future that is done once either end has closed the connection.
    """

    def __init__(self) -> None:
        """Create an end; ``open`` connects it."""
        self._told: Callable[[Message], object] = lambda _: None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, end: socket.socket, told: Callable[[Message], object]) -> None:
        """Connect one end of a socket pair.

        Args:
            end: The socket; owned by the channel from now on.
            told: Called with each message in the event loop's thread; its exceptions are logged.
        """
        self._told = told
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by asyncio."""
        self._transport = transport  # type: ignore[assignment]  # a stream transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the other end is gone; called by asyncio."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Decode and deliver complete messages; called by asyncio."""
        self._received += data
        start = 0
        while len(self._received) - start >= _LENGTH.size and not self._is_closing:
            (size,) = _LENGTH.unpack_from(self._received, start)
            if size > LARGEST_MESSAGE_BYTES:
                _log.error("a message between the processes of this server is too large: %d bytes", size)
                self.close()
                return
            end = start + _LENGTH.size + size
            if len(self._received) < end:
                break
            self._tell(bytes(self._received[start + _LENGTH.size : end]))
            start = end
        del self._received[:start]

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _tell(self, content: bytes) -> None:
        try:
            self._told(decoded(content))
        except msgspec.MsgspecError as error:
            _log.error("a message between the processes of this server is malformed: %s", error)
            self.close()
        except Exception:  # noqa: BLE001 - a failed message must not end the channel
            _log.exception("handling a message between the processes of this server failed")

    def send(self, message: Message) -> None:
        """Send a message; drop it if the connection is closed or the message is too large.

        Abort the connection if the other end has stopped reading.
        """
        if self._transport is None:
            return
        content = encoded(message)
        if len(content) > LARGEST_MESSAGE_BYTES:
            _log.error("a message between the processes of this server is too large: %d bytes", len(content))
            return
        self._transport.write(_LENGTH.pack(len(content)) + content)
        if self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self._transport.abort()

    def close(self) -> None:
        """Close this end after all queued messages have been sent."""
        if self._transport is not None:
            self._transport.close()
