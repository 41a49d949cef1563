"""What a keeper and those who ask it say to one another.

Each message is one packet of a Unix socket, MessagePack in an array whose first element says the version. A
question comes with descriptors: the socket for its answers, the file, and the patch if there is one. Who
holds that socket open holds the copy; so nothing has to be said when a copy is not wanted any more, or when
its holder is killed.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Literal

import msgspec

from headrace.sealed.copying import Content, Refusal

LARGEST_BYTES = 4096
"""The largest message."""

FORMAT = 1
"""The version of these messages; a keeper answers no other."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What is asked of a keeper.

    Attributes:
        format: The version of these messages.
        wanted: A sealed copy of the file, or its checksum only.
        content: What the file must hold.
    """

    format: int
    wanted: Literal["copy", "checksum"]
    content: Content


class Working(msgspec.Struct, frozen=True, tag="working"):
    """The keeper is at it: said about once a second, as long as something moves."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The copy is made; its descriptor comes with this."""


class Digested(msgspec.Struct, frozen=True, tag="digested"):
    """The file's checksum.

    Attributes:
        checksum: Its SHA-256, in hexadecimal digits.
    """

    checksum: str


Reply = Working | Copied | Digested | Refusal
"""What a keeper answers; the last but ``Working`` ends it."""

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send(to: socket.socket, message: Question | Reply, *descriptors: int) -> None:
    """Send a message, with descriptors that the receiver gets copies of; never waits.

    Raises:
        BlockingIOError: The receiver has not taken what was sent before.
        OSError: There is no receiver any more.
    """
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    to.sendmsg([_encoder.encode(message)], passed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sender: socket.socket, most_descriptors: int) -> tuple[bytes, list[int]] | None:
    """Take the next message and its descriptors, which are the caller's to close; never waits.

    Returns:
        None when nobody can send any more.

    Raises:
        BlockingIOError: There is none.
        OSError: The connection is broken.
    """
    space = socket.CMSG_SPACE(most_descriptors * 4)
    content, passed, _, _ = sender.recvmsg(
        LARGEST_BYTES, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, data in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not content and not descriptors:
        return None
    return content, list(descriptors)


def question(content: bytes) -> Question | None:
    """Read a question; None for what is none."""
    try:
        asked = _questions.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return asked if asked.format == FORMAT else None


def reply(content: bytes) -> Reply | None:
    """Read a reply; None for what is none."""
    try:
        said: Reply = _replies.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return said


def close(descriptors: list[int]) -> None:
    """Close descriptors that came and are not wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
