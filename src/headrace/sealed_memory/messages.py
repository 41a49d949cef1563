"""Messages between a keeper and the processes that ask it.

Each message is one packet of a Unix socket, in MessagePack. A question is an array whose first element is the
version. It carries descriptors: the socket for its answers, the file, and the patch if there is one.
The copy lives while that socket is open: a holder releases it by closing the socket, or by being killed.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Literal

import msgspec

from headrace.sealed_memory.file_copying import Content, Refusal

LARGEST_BYTES = 4096
"""Size limit of a message."""

FORMAT = 1
"""The version of these messages; a keeper answers no other."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A request to a keeper.

    Attributes:
        format: The version of these messages.
        wanted: A sealed copy of the file, or only its checksum.
        content: The expected content of the file.
    """

    format: int
    wanted: Literal["copy", "checksum"]
    content: Content


class Working(msgspec.Struct, frozen=True, tag="working"):
    """The keeper is working: sent about once a second while it makes progress."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The copy is made; its descriptor is attached to this message."""


class Digested(msgspec.Struct, frozen=True, tag="digested"):
    """The file's checksum.

    Attributes:
        checksum: Its SHA-256, in hexadecimal digits.
    """

    checksum: str


Reply = Working | Copied | Digested | Refusal
"""A keeper's reply; any but ``Working`` is the last one."""

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send(to: socket.socket, message: Question | Reply, *descriptors: int) -> None:
    """Send a message, with descriptors to be duplicated for the receiver, without blocking.

    Raises:
        BlockingIOError: The receiver has not read earlier messages.
        OSError: There is no receiver any more.
    """
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    to.sendmsg([_encoder.encode(message)], passed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sender: socket.socket, most_descriptors: int) -> tuple[bytes, list[int]] | None:
    """Return the next message and its descriptors, which the caller must close, without blocking.

    Returns:
        The bytes and the descriptors; None when all senders have closed.

    Raises:
        BlockingIOError: No message is available.
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
    """Decode a question; return None if it is malformed or of another version."""
    try:
        asked = _questions.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return asked if asked.format == FORMAT else None


def reply(content: bytes) -> Reply | None:
    """Decode a reply; return None if it is malformed."""
    try:
        said: Reply = _replies.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return said


def close(descriptors: list[int]) -> None:
    """Close received descriptors that are not needed."""
    for descriptor in descriptors:
        os.close(descriptor)
