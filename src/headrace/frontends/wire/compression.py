"""Decompress bodies within the limits, and compress large responses, in small steps."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.config import Limits

if TYPE_CHECKING:
    from headrace.frontends.wire.time_slicer import TimeSlicer

_GZIP, _GZIP_OR_ZLIB = 16 + zlib.MAX_WBITS, 32 + zlib.MAX_WBITS
_STEP_BYTES = 64 * 1024
_FASTEST = 1
_UNWANTED = re.compile(rb"gzip\s*;\s*q=0(\.0*)?\s*(,|$)")

Opening = Generator[int, None, bytes]
"""Decompression in steps: yields the number of bytes decompressed so far, and returns all of them."""

ALWAYS_OPENED_BYTES = 1024 * 1024
"""Size to which any compressed message may expand, however small it is: small bodies may compress well."""


def opening(payload: bytes, limits: Limits) -> Opening:
    """Decompress gzip or zlib data, never holding more of it than the limits allow.

    Yields:
        Number of bytes decompressed so far, after each step of less than a millisecond.

    Returns:
        The decompressed data.

    Raises:
        InvalidRequest: The data is not gzip or zlib, is truncated, or has something after its end.
        TooLarge: It expands to more than a message may have, or to more than its compressed size allows.
    """
    allowed = min(limits.max_message_bytes, max(ALWAYS_OPENED_BYTES, limits.max_expansion * len(payload)))
    opener = zlib.decompressobj(_GZIP_OR_ZLIB)
    parts: list[bytes] = []
    size, taken, rest = 0, 0, b""
    while not opener.eof and (rest or taken < len(payload) or (parts and len(parts[-1]) == _STEP_BYTES)):
        if not rest:
            rest = payload[taken : taken + _STEP_BYTES]
            taken += len(rest)
        try:
            parts.append(opener.decompress(rest, _STEP_BYTES))
        except zlib.error as error:
            raise InvalidRequest("the body is marked as compressed, but is neither gzip nor zlib") from error
        rest = opener.unconsumed_tail
        size += len(parts[-1])
        if size > allowed:
            raise _opens_too_far(len(payload), allowed, limits)
        yield size
    if not opener.eof:
        raise InvalidRequest("the compressed body is truncated")
    if opener.unused_data or taken < len(payload):
        raise InvalidRequest("the compressed body has data after its end; send it as one gzip member")
    return b"".join(parts)


def _opens_too_far(came: int, allowed: int, limits: Limits) -> TooLarge:
    if allowed == limits.max_message_bytes:
        return TooLarge(
            f"the body decompresses to more than {allowed} bytes, the most that this server takes"
        )
    return TooLarge(
        f"the body has {came} bytes and decompresses to more than {allowed}; expected at most "
        f"{limits.max_expansion} times as many (limits.max_expansion), or 1 MiB; send it uncompressed"
    )


async def gzipped(body: bytes, slicer: TimeSlicer) -> bytes:
    """Compress a response as gzip, a large one in the time slicer.

    Args:
        body: Body of the response.
        slicer: Time slicer in which large responses are compressed.
    """
    packer = zlib.compressobj(_FASTEST, wbits=_GZIP)
    if len(body) <= _STEP_BYTES:
        return packer.compress(body) + packer.flush()
    parts = []
    async with slicer:
        for start in range(0, len(body), _STEP_BYTES):
            parts.append(packer.compress(body[start : start + _STEP_BYTES]))
            await slicer.breathe()
    return b"".join([*parts, packer.flush()])


def accepts_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the sender of these headers accepts a gzip response."""
    return any(
        name == b"accept-encoding" and b"gzip" in value and not _UNWANTED.search(value)
        for name, value in headers
    )
