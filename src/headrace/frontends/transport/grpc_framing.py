"""gRPC's framing and metadata, without I/O: prefixed messages, timeouts, status trailers.

The format is gRPC's "PROTOCOL-HTTP2". Each message is a flag byte (1 = compressed), its length in four bytes,
big-endian, and its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sized
from urllib.parse import quote

from headrace.base.errors import HeadraceError, InvalidRequest, TooLarge, Unsupported, cut
from headrace.base.status_codes import codes
from headrace.config import Limits
from headrace.frontends.calls import told
from headrace.frontends.wire.compression import Opening, opening
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")
pack_prefix = _PREFIX.pack
"""Packs the prefix of a message: 1 if it is compressed else 0, and its size."""
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_MESSAGE = 2000
# Clients reject trailers beyond about 8 KiB, and then report that instead of the error.
_LONGEST_ENCODED_MESSAGE = 4096
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

Header = tuple[bytes, bytes]


def frame(message: bytes) -> bytes:
    """Return an uncompressed message with its prefix."""
    return pack_prefix(0, len(message)) + message


def frame_prefix(message: Sized) -> bytes:
    """Return the prefix of an uncompressed message."""
    return pack_prefix(0, len(message))


def plain_message(body: bytes) -> bytes | None:
    """Return the message if the first chunk of a body is all of it, so that a unary call need not read on.

    Return None for anything else, and for a large or compressed message.
    """
    size = len(body) - PREFIX_BYTES
    if 0 <= size <= AT_ONCE_BYTES and body.startswith(pack_prefix(0, size)):
        return body[PREFIX_BYTES:]
    return None


def announced_size(body: bytes) -> int:
    """Return the size of a unary call's body, from the prefix at its start; -1 if that is incomplete."""
    if len(body) < PREFIX_BYTES:
        return -1
    length: int = _PREFIX.unpack_from(body)[1]
    return PREFIX_BYTES + length


def take_prefix(chunks: list[bytes | memoryview]) -> bool:
    """Remove the prefix from the body of a unary call, in place and without copying the message.

    Args:
        chunks: Chunks of the whole body; those of the message remain.

    Returns:
        Whether the message is compressed.

    Raises:
        InvalidRequest: The body is not exactly one message.
    """
    size = sum(map(len, chunks)) - PREFIX_BYTES
    if size < 0:
        got = size + PREFIX_BYTES
        raise InvalidRequest(f"expected one gRPC message of at least {PREFIX_BYTES} bytes, got {got}")
    prefix = b""
    while len(prefix) < PREFIX_BYTES:
        first = memoryview(chunks.pop(0))
        missing = PREFIX_BYTES - len(prefix)
        prefix += first[:missing]
        if len(first) > missing:
            chunks.insert(0, first[missing:])
    compressed, length = _PREFIX.unpack(prefix)
    if length != size:
        raise InvalidRequest(f"expected one gRPC message of {length} bytes, got {size}")
    return bool(compressed)


class MessageReader:
    """Splits a stream of bytes into messages; takes chunks of any size."""

    def __init__(self, encoding: bytes, limits: Limits) -> None:
        """Start at the beginning of a stream.

        Args:
            encoding: Value of ``grpc-encoding``, or empty.
            limits: Limits on a message.
        """
        self._encoding = encoding
        self._limits = limits
        self._buffer = bytearray()
        self._complete = 0

    @property
    def begun(self) -> int | None:
        """Number of the message that has arrived in part, counted from 0; None if there is none."""
        return self._complete if self._buffer else None

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes buffered of an incomplete message."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[Opening]:
        """Take a chunk, and yield the messages that it completes, including those before an invalid one.

        Each is a generator that decompresses the message step by step, as ``opened`` does.

        Raises:
            TooLarge: A message announces more bytes than are allowed; the rest is not awaited.
        """
        self._buffer += chunk
        while len(self._buffer) >= PREFIX_BYTES:
            compressed, length = _PREFIX.unpack_from(self._buffer)
            if length > self._limits.max_message_bytes:
                most = self._limits.max_message_bytes
                raise TooLarge(f"the message has {length} bytes; this server takes at most {most}")
            end = PREFIX_BYTES + length
            if len(self._buffer) < end:
                break
            payload = bytes(memoryview(self._buffer)[PREFIX_BYTES:end])
            del self._buffer[:end]
            self._complete += 1
            yield opened(payload, self._encoding, self._limits, compressed=bool(compressed))

    def finish(self) -> None:
        """Check that the stream did not end within a message.

        Raises:
            InvalidRequest: It did.
        """
        if self._buffer:
            raise InvalidRequest(f"the stream ended within a gRPC message, {len(self._buffer)} bytes into it")


def opened(payload: bytes, encoding: bytes, limits: Limits, *, compressed: bool) -> Opening:
    """Decompress a message without its prefix, step by step.

    Args:
        payload: Message as received, within the size limit.
        encoding: Value of ``grpc-encoding``, or empty.
        limits: Limits on a message.
        compressed: Compression flag of the prefix.

    Raises:
        InvalidRequest: The compressed data is invalid.
        TooLarge: The decompressed message is too large.
        Unsupported: The compression is not supported.
    """
    if not compressed:
        return payload
    if encoding not in {b"gzip", b"deflate"}:
        known = encoding.decode("latin-1")
        raise Unsupported(f"grpc-encoding {known!r:.40} is not supported; use identity, gzip or deflate")
    return (yield from opening(payload, limits))


def timeout_seconds(value: bytes) -> float:
    """Return the value of ``grpc-timeout`` in seconds: up to eight digits and a unit, H M S m u n.

    Raises:
        InvalidRequest: It has another format.
    """
    digits, unit = value[:-1], value[-1:]
    if unit not in _TIMEOUT_UNITS or not digits.isdigit() or len(digits) > 8:
        raise InvalidRequest(
            f"expected digits and one of H M S m u n, got {value!r:.40}", field="grpc-timeout"
        )
    return int(digits) * _TIMEOUT_UNITS[unit]


def short_message(error: HeadraceError) -> str:
    """Return an error's message; the middle of one that clients would not accept in trailers is cut."""
    said, longest = told(error), _LONGEST_MESSAGE
    message = cut(said, longest)
    while (size := len(quote(message, _PLAIN, errors="replace"))) > _LONGEST_ENCODED_MESSAGE:
        longest = min(longest * _LONGEST_ENCODED_MESSAGE // size, longest * 9 // 10)
        message = cut(said, longest)
    return message


def error_headers(error: HeadraceError) -> list[Header]:
    """Return the trailers that describe an error."""
    message = quote(short_message(error), _PLAIN, errors="replace")
    headers = [
        (b"grpc-status", str(codes(error).grpc).encode()),
        (b"grpc-message", message.encode()),
    ]
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is not None:
        headers.append((b"grpc-retry-pushback-ms", str(max(1, math.ceil(retry_after * 1000))).encode()))
    return headers
