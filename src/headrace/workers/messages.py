"""What the supervisor and a worker tell each other: small values; both must be of one release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace import __version__
from headrace.batching.capacity import LoadReport
from headrace.batching.counts import VersionCounts
from headrace.config import ModelConfig, ServerConfig
from headrace.lifecycle.state import VersionStatus

LARGEST_MESSAGE_BYTES = 2**27
"""The largest message: the metrics of many thousands of models."""

RELEASE = f"{__version__}/8"
"""Of which release messages are; the number behind it grows when they change. Told before any message is."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a worker, first: what it is to be.

    Attributes:
        worker: Its place among the workers, from 0.
        models: The directory of models.
        config: Its settings, limits divided.
        sockets: The descriptors of its listening sockets, for REST and for gRPC.
        workers: How many there are.
        announces: Whether it prints what is served; as JSON, or for people.
        json: See ``announces``.
        begun: When the command began, on the monotonic clock.
        waits: Whether it takes connections only when its models have been tried: the server has been ready.
            It waits less where it is ``Alone``.
        fills: Whether it fills the archive.
        keeper: The descriptor at which it asks for sealed copies; None where it makes its own.
        callers: The descriptor of the memory in which callers are counted; -1 where none are.
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


class Beat(msgspec.Struct, frozen=True, tag=True):
    """To a worker, again and again, and back from its serving thread: it is not stuck.

    Attributes:
        report: The load of all workers together; on the way back, that of this worker. None where load is not
            reported, or not known yet.
    """

    report: LoadReport | None = None


class Alone(msgspec.Struct, frozen=True, tag=True):
    """To a worker that does not serve yet: no other one answers anybody."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To a worker: say in each answer that its connection ends.

    Attributes:
        is_followed: Whether another server takes new connections: then it says that it is ready, still.
    """

    is_followed: bool = False


class Finish(msgspec.Struct, frozen=True, tag=True):
    """To a worker: no connection comes any more; answer, unload, and end.

    Attributes:
        until: When the drain time is over, on the monotonic clock.
        first_seconds: How long who has connected, and got nothing yet, may take to ask.
    """

    until: float
    first_seconds: float = 0.0


class Serving(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it accepts connections."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot start.

    Attributes:
        message: Why.
        wrong: Whether a setting is wrong, so that trying again cannot help.
    """

    message: str
    wrong: bool


class ModelTold(msgspec.Struct, frozen=True):
    """What is told of one model.

    Attributes:
        versions: Its versions, newest first.
        answers: Whether one of them is ready; of all workers: in each of them.
        problems: What is not as the operator asked for.
    """

    versions: tuple[VersionStatus, ...]
    answers: bool
    problems: tuple[str, ...]


class States(msgspec.Struct, frozen=True, tag=True):
    """From a worker: what has changed of its models.

    Attributes:
        models: By name; None for a model that it does not know any more.
        ready: Whether its models have been tried, and one answers.
    """

    models: dict[str, ModelTold | None]
    ready: bool


class View(msgspec.Struct, frozen=True, tag=True):
    """To a worker: what has changed of what all workers tell.

    Attributes:
        models: By name; None for a model that no worker knows any more.
        ready: Whether the server is ready.
    """

    models: dict[str, ModelTold | None]
    ready: bool


class WantedTold(msgspec.Struct, frozen=True):
    """What is wanted of one model.

    Attributes:
        versions: As in ``Wanted``.
        config: As in ``Wanted``, its caches divided.
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
    """To a worker: everything that is wanted; what is left out is not.

    Attributes:
        models: What is wanted of each model.
        unusable: What cannot be used, by name, and why.
    """

    models: dict[str, WantedTold]
    unusable: dict[str, str]


class Act(msgspec.Struct, frozen=True, tag=True):
    """From the worker that a client asked, which has done it; then to all others.

    Attributes:
        model: A model's name.
        unload: Whether it is unloaded; else it is loaded, and what failed is tried anew.
    """

    model: str
    unload: bool


class Scrape(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it wants the metrics of all; and to each: its own are wanted.

    Attributes:
        number: Of the question, for its answer.
    """

    number: int


class Scraped(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``Scrape``.

    Attributes:
        number: Of the question.
        text: Metrics in Prometheus' text format.
    """

    number: int
    text: bytes


class Count(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it wants what the others have counted; and to each of these: its own is wanted.

    Attributes:
        number: Of the question, for its answer.
        models: Of which models.
        version: Of which version; None for all that are ready.
    """

    number: int
    models: tuple[str, ...]
    version: int | None


class Counted(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``Count``.

    Attributes:
        number: Of the question.
        counts: What was counted.
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


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is in no message")


def _made(kind: type[Any], value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise TypeError(f"{kind.__name__} is in no message")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_made)


def encoded(message: Message) -> bytes:
    """A message's bytes."""
    return _encoder.encode(message)


def decoded(content: bytes | memoryview) -> Message:
    """The message of some bytes.

    Raises:
        msgspec.MsgspecError: They are none.
    """
    try:
        return _decoder.decode(content)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text that is no UTF-8: {error}") from error
