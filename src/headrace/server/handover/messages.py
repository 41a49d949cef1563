"""Messages between two servers during a handover: JSON, in a numbered protocol.

The two servers may be of different releases. ``Hello`` and ``HandoverRefused`` never change. Any other change
that the other side must know about gets a new protocol number. Unknown fields are ignored.
"""

from __future__ import annotations

import msgspec

PROTOCOLS = (1,)
"""The protocols supported here."""

LARGEST_MESSAGE_BYTES = 2**24
"""Size limit of a message; enough for the versions of many thousands of models."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of the new server.

    Attributes:
        headrace: Its release.
        protocols: The protocols that it supports.
    """

    headrace: str
    protocols: tuple[int, ...]


class HandoverRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The running server refuses the handover.

    Attributes:
        why: The reason, for people.
    """

    why: str


class Given(msgspec.Struct, frozen=True, tag="given"):
    """The running server's reply to ``Hello``; the descriptors of its listening sockets follow.

    The sets come first, in the order of their numbers in the kernel, each with a socket for REST and one for
    gRPC. The administration sockets follow.

    Attributes:
        protocol: The protocol used from now on.
        headrace: The release of the running server.
        sets: Number of sets.
        free: The sets that no process accepts on.
        leading: The sets that get new connections.
        has_many: Whether sets can be added and connections steered to some of them.
        admin: Number of administration sockets.
    """

    protocol: int
    headrace: str
    sets: int
    free: tuple[int, ...]
    leading: tuple[int, ...]
    has_many: bool
    admin: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """The new server asks which versions are ready; sent repeatedly while it loads."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The running server's reply to ``Ask``.

    Attributes:
        models: The ready versions of each model.
    """

    models: dict[str, tuple[int, ...]]


class Take(msgspec.Struct, frozen=True, tag="take"):
    """The new server accepts connections and is about to steer them to itself."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The running server's reply to ``Take``: it no longer steers connections, so the new one may."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The new server gets all new connections; the running one shuts down, which ends the conversation."""


Message = Hello | HandoverRefused | Given | Ask | Ready | Take | Go | Taken

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encoded(message: Message) -> bytes:
    """Return the encoded message."""
    return _encoder.encode(message)


def decoded(content: bytes) -> Message:
    """Decode a message.

    Raises:
        msgspec.MsgspecError: The bytes are not a message.
    """
    try:
        return _decoder.decode(content)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text is not UTF-8: {error}") from error


def protocol(theirs: tuple[int, ...], ours: tuple[int, ...] = PROTOCOLS) -> int | None:
    """Return the highest protocol that both servers support; None if there is none.

    Args:
        theirs: The protocols of the new server.
        ours: The protocols supported here.
    """
    return max(set(theirs) & set(ours), default=None)
