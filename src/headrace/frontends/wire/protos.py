"""The protocols' messages, from the descriptor set that ``tools/protos.py`` compiles from ``proto/``.

They have a private pool. A process that also uses another V2 client or TensorFlow registers messages of the
same names in protobuf's default pool, and registering a name twice ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES

Message = Any
"""A message object; its fields exist at run time only, so type checkers do not know them."""


class MessageClass(Protocol):
    """The class of one message type."""

    FromString: Callable[[bytes], Message]

    def __call__(self, **fields: object) -> Message:
        """Make a message with these fields."""


def _fill_pool() -> tuple[Any, tuple[str, ...]]:
    pool = descriptor_pool.DescriptorPool()
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(
        Path(__file__).with_name("protos.binpb").read_bytes()
    )
    for file in descriptors.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool, tuple(file.name for file in descriptors.file)


_ON_REQUEST = {"headrace.archive.v1.Archive"}

POOL, FILES = _fill_pool()
"""The private pool, and the names of the files in it."""


def services() -> tuple[str, ...]:
    """Return the full names of the gRPC services that every server has, in order."""
    files = (POOL.FindFileByName(name) for name in FILES)
    found = {found.full_name for file in files for found in file.services_by_name.values()}
    return tuple(sorted(found - _ON_REQUEST))


@cache
def message(name: str) -> MessageClass:
    """Return the class of a message.

    Args:
        name: Full name of the message, for example ``inference.ModelInferRequest``.

    Raises:
        KeyError: ``proto/`` has no such message.
    """
    made: MessageClass = message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
    return made


def parse(kind: MessageClass, data: bytes, *, counted: bool = False) -> Message:
    """Parse a message that a client sent.

    Args:
        kind: Class of the message.
        data: Serialized message.
        counted: Whether its values have been counted (``protobuf_cost``); if not, it may not be large.

    Raises:
        InvalidRequest: The bytes are not such a message.
        TooLarge: They were not counted, and exceed ``AT_ONCE_BYTES``.
    """
    if len(data) > AT_ONCE_BYTES and not counted:
        name = kind.DESCRIPTOR.full_name  # type: ignore[attr-defined]
        raise TooLarge(f"expected a {name} message of at most {AT_ONCE_BYTES} bytes, got {len(data)}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = kind.DESCRIPTOR.full_name  # type: ignore[attr-defined]
        raise InvalidRequest(
            f"expected a {name} message, got {len(data)} bytes that are not one; "
            "compare the client's proto files with this server's"
        ) from error
