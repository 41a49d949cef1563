"""What two servers tell each other while one takes the ports of the other: JSON, of a numbered protocol.

The two may be of different releases. ``Hello`` and ``Refused`` stay as they are for ever; whatever else
changes in a way that the other side has to know gets a new number. Fields that one side does not know are
left unread.
"""

from __future__ import annotations

import msgspec

PROTOCOLS = (1,)
"""The protocols that are spoken here, the best first."""

LARGEST_MESSAGE_BYTES = 2**24
"""The largest message: the versions of many thousands of models."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """From the new server, first.

    Attributes:
        headrace: Its release.
        protocols: Those that it speaks, the best first.
    """

    headrace: str
    protocols: tuple[int, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """From the running server: it gives nothing, now or ever.

    Attributes:
        why: For people.
    """

    why: str


class Given(msgspec.Struct, frozen=True, tag="given"):
    """From the running server: its listening sockets, whose descriptors follow.

    First come the sets, in the order of their numbers in the kernel, each with a socket for REST and one for
    gRPC; then those of administration.

    Attributes:
        protocol: The protocol that is spoken from now on.
        headrace: Its release.
        sets: How many sets there are.
        free: The sets at which nobody accepts.
        leading: The sets that get new connections.
        has_many: Whether sets can be added, and connections led to some of them.
        admin: How many sockets of administration there are.
    """

    protocol: int
    headrace: str
    sets: int
    free: tuple[int, ...]
    leading: tuple[int, ...]
    has_many: bool
    admin: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """From the new server, again and again while it loads: what is ready there?"""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From the running server: what is ready.

    Attributes:
        models: The versions of each model that answer.
    """

    models: dict[str, tuple[int, ...]]


class Take(msgspec.Struct, frozen=True, tag="take"):
    """From the new server: it accepts, and is about to lead connections to itself."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """From the running server: the new one may lead connections; it does so itself no more."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """From the new server: new connections come to it. The other one ends, and with it the conversation."""


Message = Hello | Refused | Given | Ask | Ready | Take | Go | Taken

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encoded(message: Message) -> bytes:
    """A message's bytes."""
    return _encoder.encode(message)


def decoded(content: bytes) -> Message:
    """The message of some bytes.

    Raises:
        msgspec.MsgspecError: They are none.
    """
    try:
        return _decoder.decode(content)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text that is no UTF-8: {error}") from error


def protocol(theirs: tuple[int, ...], ours: tuple[int, ...] = PROTOCOLS) -> int | None:
    """The best protocol that both speak; None if there is none.

    Args:
        theirs: Those of the new server.
        ours: Those that are spoken here.
    """
    return max(set(theirs) & set(ours), default=None)
