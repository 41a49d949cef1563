"""Put texts, of which a tensor may have a million, into arrays, and read and write their raw form.

In the raw form, which is the Open Inference Protocol's, each text follows its length of four bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.wire.time_slicer import Steps

# Decode base64 as common tools write it: with line ends, without padding, or in the URL-safe alphabet.


_TO_STANDARD = str.maketrans({"\r": None, "\n": None, "\t": None, " ": None, "-": "+", "_": "/"})
_MOST_PADDING = 2


def decoding(text: str, step: int) -> Iterator[bytes]:
    """Decode base64 in small steps.

    Args:
        text: Base64 in RFC 4648's standard or URL-safe alphabet, with or without padding and white space.
        step: Number of characters decoded at once.

    Yields:
        Decoded bytes of each step.

    Raises:
        ValueError: The text is not base64.
    """
    left = ""
    for start in range(0, len(text), step):
        left += text[start : start + step].translate(_TO_STANDARD)
        digits = left.rstrip("=")
        if "=" in digits:
            raise ValueError("padding within the text")
        if len(left) - len(digits) > _MOST_PADDING:
            raise ValueError("more than two characters of padding")
        if start + step < len(text):
            whole = len(digits) - len(digits) % 4
        else:
            left = digits + "=" * (-len(digits) % 4)
            whole = len(left)
        yield base64.b64decode(left[:whole], validate=True)
        left = left[whole:]


def decoded(text: str) -> bytes:
    """Decode base64 at once; see ``decoding``."""
    return b"".join(decoding(text, max(1, len(text))))


_LENGTH = Struct("<I")

LENGTH_BYTES = _LENGTH.size
"""Number of bytes before each text in the raw form."""

TEXT_BYTES = 41
"""Number of bytes that a text takes beside its own: an object, and its place in an array."""

_STEP = 1024
_FEW = 32
_STEP_BYTES = 256 * 1024


def gathering(strings: Sequence[bytes] | Array) -> Steps[Array]:
    """Put strings into an array in small steps.

    Args:
        strings: Strings in any sequence that supports slicing; an array is returned as it is.
    """
    if isinstance(strings, np.ndarray):
        return strings
    array, size = np.empty(len(strings), STRING), 0
    for start in range(0, len(strings), _FEW):
        part = strings[start : start + _FEW]
        array[start : start + _FEW] = part
        size += _STEP_BYTES // _STEP * len(part) + sum(map(len, part))
        if size >= _STEP_BYTES:
            size = 0
            yield
    return array


def splitting(field: str, raw: bytes, count: int) -> Steps[Array]:
    """Read strings from their raw form in small steps; each follows its length of four bytes.

    Args:
        field: Field that contains them, for the error.
        raw: All strings in their raw form.
        count: Expected number of strings.

    Raises:
        InvalidRequest: A string is truncated, or there are more or fewer.
    """
    end, position, found = len(raw), 0, 0
    if count * _LENGTH.size > end:
        raise wrong_count(field, count, f"{end} bytes")
    array = np.empty(count, STRING)
    while position < end:
        strings: list[bytes] = []
        enough = position + _STEP_BYTES
        while position < end and position < enough and len(strings) < _STEP:
            start = position + _LENGTH.size
            position = start + _LENGTH.unpack_from(raw, position)[0] if start <= end else start
            if position > end:
                raise InvalidRequest(
                    f"string {found + len(strings)} is truncated: {position - end} bytes are missing; "
                    "write each string after its length, four bytes little-endian",
                    field=field,
                )
            strings.append(raw[start:position])
        if found + len(strings) > count:
            raise wrong_count(field, count, "more")
        array[found : found + len(strings)] = strings
        found += len(strings)
        yield
    if found != count:
        raise wrong_count(field, count, found)
    return array


def wrong_count(field: str, count: int, got: object) -> InvalidRequest:
    """Return the error for a tensor whose number of texts differs from its shape's."""
    return InvalidRequest(
        f"expected {count} strings for its shape, got {got}; make the shape and the data agree", field=field
    )


def text_parts(texts: Array) -> Iterator[list[bytes]]:
    """Yield texts in parts that are written at once; a long text is a part of its own.

    Args:
        texts: Array of any shape.
    """
    flat = texts.ravel()
    for start in range(0, len(flat), _STEP):
        part, size = list[bytes](), 0
        for text in flat[start : start + _STEP].tolist():
            if part and size + len(text) > _STEP_BYTES:
                yield part
                part, size = [], 0
            part.append(text)
            size += len(text)
        yield part


def raw_texts(texts: Array) -> Iterator[list[bytes]]:
    """Yield texts in their raw form, in pieces made in small steps; a long text is not copied."""
    for part in text_parts(texts):
        if len(part) == 1:
            yield [_LENGTH.pack(len(part[0])), part[0]]
        else:
            yield [join_strings(part)]


def join_strings(strings: Iterable[bytes]) -> bytes:
    """Return strings in their raw form."""
    pack = _LENGTH.pack
    return b"".join([part for string in strings for part in (pack(len(string)), string)])
