"""The archive's protobuf messages; answers to lookups are written by hand, and copied once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from headrace.archive.looking import Lookup
from headrace.errors import HeadraceError, InvalidRequest, TooLarge
from headrace.frontends.wire import protos
from headrace.frontends.wire.names import check_name
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES, malformed
from headrace.frontends.wire.protobuf_fields import (
    LENGTH_DELIMITED,
    VARINT,
    Field,
    field_number,
    fields,
    length_prefix,
    read_varint,
    varint,
)
from headrace.frontends.wire.steps import Steps
from headrace.status import codes
from headrace.tensors import Array

PACKAGE = "headrace.archive.v1"
"""Where the messages are."""

LookupRequest = protos.message(f"{PACKAGE}.LookupRequest")
"""What Lookup takes."""

_LookupResponse = protos.message(f"{PACKAGE}.LookupResponse")
_StreamResponse = protos.message(f"{PACKAGE}.LookupStreamResponse")
_VECTORS, _FOUND, _VERSION, _DTYPE, _DIMENSION, _WRITTEN = (
    field_number(_LookupResponse, name)
    for name in ("vectors", "found", "version", "dtype", "dimension", "written")
)
_RESPONSE = field_number(_StreamResponse, "response")
_STEP_FIELDS = 512
_STEP_BYTES = 256 * 1024
_LIGHT_BYTES = 1024 * 1024
_LIGHT_KEYS = 16_384
_KEY = field_number(LookupRequest, "keys") << 3 | LENGTH_DELIMITED
_DTYPES = {"": "<f4", "float32": "<f4", "float16": "<f2"}


class Asked:
    """What a message about keys says.

    Attributes:
        space: Which space.
        keys: Texts.
        version: Which version; 0 for the default.
        written: Whether to say when vectors were written.
        vectors: Numbers, of a Put.
        dtype: What they are.
    """

    __slots__ = ("dtype", "keys", "space", "vectors", "version", "written")

    def __init__(self) -> None:
        """Nothing yet."""
        self.space, self.dtype, self.version, self.written = "", "", 0, False
        self.keys: list[str] = []
        self.vectors: bytes | memoryview = b""


def is_small(message: bytes) -> bool:
    """Whether a message is parsed at once."""
    return len(message) <= AT_ONCE_BYTES


def is_light(message: bytes) -> bool:
    """Whether a message is parsed in one step of a few milliseconds: it has not many keys.

    Each key begins with its tag, so there are no more keys than such bytes. Walking the fields takes twenty
    times as long.
    """
    if len(message) > _LIGHT_BYTES:
        return False
    return int(np.count_nonzero(np.frombuffer(message, np.uint8) == _KEY)) <= _LIGHT_KEYS


def lookup_of(message: bytes, *, counted: bool = False) -> Asked:
    """Parse a LookupRequest.

    Args:
        message: The bytes.
        counted: Whether it is known to be light; if not, it may not be large.

    Raises:
        InvalidRequest: It is none.
    """
    given, asked = protos.parse(LookupRequest, message, counted=counted), Asked()
    asked.space, asked.keys, asked.version = given.space, list(given.keys), given.version
    asked.written = given.written
    return asked


def parsed(message: bytes, kind: protos.MessageClass) -> Asked:
    """Parse any other small message.

    Args:
        message: The bytes.
        kind: Its class.

    Raises:
        InvalidRequest: It is no such message.
    """
    given, asked = protos.parse(kind, message), Asked()
    asked.space, asked.keys = given.space, list(given.keys)
    if hasattr(given, "vectors"):
        asked.vectors, asked.dtype, asked.version = given.vectors, given.dtype, given.version
    return asked


def parsing(message: bytes, kind: protos.MessageClass, most_keys: int, longest: int) -> Steps[Asked]:
    """Parse a large message in small steps.

    Args:
        message: The bytes.
        kind: Its class.
        most_keys: How many keys any space takes: more are refused before they are made.
        longest: How many bytes the longest key of any space may have; the same.

    Raises:
        InvalidRequest: It is no such message, or has a longer key.
        TooLarge: It has more keys.
    """
    asked, done = Asked(), 0
    names = {field.number: field.name for field in kind.DESCRIPTOR.fields}  # type: ignore[attr-defined]
    for number, field in enumerate(_fields(message)):
        name = names.get(field.number)
        if name == "keys" and field.wire_type == LENGTH_DELIMITED:
            if len(asked.keys) == most_keys:
                raise TooLarge(f"expected at most {most_keys} keys, got more; ask in parts", field="keys")
            if field.stop - field.start > longest:
                got = f"expected 1 to {longest} bytes of UTF-8, got {field.stop - field.start}"
                raise InvalidRequest(got, field=f"keys[{len(asked.keys)}]")
            asked.keys.append(_text(message, field.start, field.stop, f"keys[{len(asked.keys)}]"))
        elif name == "vectors" and field.wire_type == LENGTH_DELIMITED:
            asked.vectors = memoryview(message)[field.start : field.stop]
        elif name in ("space", "dtype") and field.wire_type == LENGTH_DELIMITED:
            check_name(field.stop - field.start, name)
            setattr(asked, name, _text(message, field.start, field.stop, name))
        elif name in ("version", "written") and field.wire_type == VARINT:
            setattr(asked, name, read_varint(message, field.start)[0])
        if number % _STEP_FIELDS == _STEP_FIELDS - 1 or field.stop - done > _STEP_BYTES:
            done = field.stop
            yield
    return asked


def _fields(message: bytes) -> Iterator[Field]:
    try:
        yield from fields(message)
    except ValueError as error:
        raise malformed(message, 0) from error


def _text(message: bytes, start: int, stop: int, field: str) -> str:
    try:
        return message[start:stop].decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"expected UTF-8, got {error.reason}", field=field) from error


def vectors_of(asked: Asked) -> Array:
    """The vectors of a Put, float32 or float16 ``[N, dimension]``.

    Raises:
        InvalidRequest: They are not as many numbers as fit to the keys, or of no dtype that is taken.
    """
    if asked.dtype not in _DTYPES:
        raise InvalidRequest(f"expected float32 or float16, got {asked.dtype!r:.40}", field="dtype")
    numbers, keys = np.dtype(_DTYPES[asked.dtype]), len(asked.keys)
    size = len(asked.vectors)
    if not keys or size % (keys * numbers.itemsize):
        expected = f"{keys} vectors of {numbers.name}, one a key, all of one length"
        raise InvalidRequest(f"expected {expected}, got {size} bytes", field="vectors")
    return np.frombuffer(asked.vectors, numbers).reshape(keys, -1)


def response(lookup: Lookup, *, with_written: bool) -> bytes:
    """Write a LookupResponse.

    Args:
        lookup: What was found.
        with_written: Whether to say when each vector was written.
    """
    pieces = _pieces(lookup, with_written)
    return b"".join(pieces)


def _pieces(lookup: Lookup, with_written: bool) -> list[bytes | memoryview]:
    vectors, written = lookup.vectors, lookup.written
    if sys.byteorder == "big":
        vectors, written = vectors.astype(vectors.dtype.newbyteorder("<")), written.astype("<u8")
    name = vectors.dtype.name.encode()
    found = lookup.found.tobytes()
    pieces: list[bytes | memoryview] = [
        length_prefix(_VECTORS, vectors.nbytes),
        vectors.data.cast("B") if vectors.nbytes else b"",
        length_prefix(_FOUND, len(found)),
        found,
        varint(_VERSION << 3) + varint(lookup.version) + length_prefix(_DTYPE, len(name)) + name,
        varint(_DIMENSION << 3) + varint(vectors.shape[1]),
    ]
    if with_written:
        pieces += [length_prefix(_WRITTEN, written.nbytes), written.tobytes()]
    return pieces


def in_stream(written: bytes) -> bytes:
    """Wrap a LookupResponse as a stream's answer."""
    return length_prefix(_RESPONSE, len(written)) + written


def error_in_stream(error: HeadraceError) -> bytes:
    """What a stream answers to a message that failed; the stream goes on."""
    message = _StreamResponse(error={"code": codes(error).grpc, "message": error.message})
    serialized: bytes = message.SerializeToString()
    return serialized
