"""Many values written as protobuf's fields, in small steps: NumPy makes the bytes, not one object a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.steps import Steps
from headrace.frontends.wire.texts import raw_texts, text_parts
from headrace.tensors import STRING, Array

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance

WRITTEN_AT_ONCE = 4096
"""Outputs of up to so many values are written at once, by protobuf: for few values it is the faster way."""

_BYTES_AT_ONCE = 1024 * 1024

_STEP = 4096
_BITS_A_BYTE = 7
_COPIES = 2  # the pieces, and the message that they are joined to


def is_large(tensor: Array) -> bool:
    """Whether an output whose values are written one by one takes so long that it is written in steps."""
    if tensor.size > WRITTEN_AT_ONCE:
        return True
    return tensor.dtype == STRING and sum(map(len, tensor.ravel().tolist())) > _BYTES_AT_ONCE


def is_large_raw(size: int) -> bool:
    """Whether an output's bytes are so many that they are copied in steps."""
    return size > _BYTES_AT_ONCE


def field_of(number: int, tensor: Array, allowance: Allowance) -> Steps[list[bytes]]:
    """A repeated field with the values of a tensor, as protobuf serializes it, in pieces.

    Args:
        number: The field's number.
        tensor: Its values; halves as the integers of their bits.
        allowance: Holds what is written.

    Raises:
        Overloaded: All requests together would hold too many bytes.
    """
    flat, pieces = tensor.ravel(), list[bytes]()
    parts = text_parts(flat) if tensor.dtype == STRING else _cuts(flat)
    for part in parts:
        written = _texts(number, part) if isinstance(part, list) else [_numbers(part)]
        allowance.hold(_COPIES * sum(map(len, written)))
        pieces += written
        yield
    if tensor.dtype != STRING and pieces:
        pieces.insert(0, length_prefix(number, sum(map(len, pieces))))
    return pieces


def _cuts(values: Array) -> Iterator[Array]:
    for start in range(0, len(values), _STEP):
        yield values[start : start + _STEP]


def raw_texts_of(number: int, tensor: Array, allowance: Allowance) -> Steps[list[bytes]]:
    """One field of bytes with the texts of a tensor, each after its length, in pieces; see ``field_of``."""
    pieces: list[bytes] = []
    for written in raw_texts(tensor):
        allowance.hold(_COPIES * sum(map(len, written)))
        pieces += written
        yield
    return [length_prefix(number, sum(map(len, pieces))), *pieces]


def as_bytes(text: object) -> bytes:
    """A text of an answer, which models give as bytes or as str."""
    return text if isinstance(text, bytes) else str(text).encode()


def _texts(number: int, texts: list[bytes]) -> list[bytes]:
    written = [part for text in map(as_bytes, texts) for part in (length_prefix(number, len(text)), text)]
    return written if len(texts) == 1 else [b"".join(written)]


def _numbers(values: Array) -> bytes:
    if values.dtype.kind not in "iu":  # floats lie there as they are, and so do truths: zero and one
        return values.tobytes()
    whole = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    width = max(1, -(-int(whole.max()).bit_length() // _BITS_A_BYTE))
    # What is left of each number from its first, second, … byte on; where nothing is, it has ended.
    left = whole[:, None] >> np.arange(0, width * _BITS_A_BYTE, _BITS_A_BYTE, dtype=np.uint64)
    used = left != 0
    used[:, 0] = True
    written = left.astype(np.uint8) & 0x7F
    written[:, :-1] |= used[:, 1:].view(np.uint8) << _BITS_A_BYTE
    serialized: bytes = written[used].tobytes()
    return serialized
