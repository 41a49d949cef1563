"""Write many values as protobuf fields in small steps: NumPy makes the bytes, not one object per value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.tensors import STRING, Array
from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.texts import raw_texts, text_parts
from headrace.frontends.wire.time_slicer import Steps

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

WRITTEN_AT_ONCE = 4096
"""Number of values up to which protobuf writes an output at once, which is faster for few values."""

_BYTES_AT_ONCE = 1024 * 1024

_STEP = 4096
_BITS_A_BYTE = 7
_COPIES = 2  # the pieces, and the message that they are joined into


def is_large(tensor: Array) -> bool:
    """Return whether an output whose values are written one by one is so large that steps are needed."""
    if tensor.size > WRITTEN_AT_ONCE:
        return True
    return tensor.dtype == STRING and sum(map(len, tensor.ravel().tolist())) > _BYTES_AT_ONCE


def is_large_raw(size: int) -> bool:
    """Return whether an output's bytes are so many that they are copied in steps."""
    return size > _BYTES_AT_ONCE


def field_of(number: int, tensor: Array, budget: RequestBudget) -> Steps[list[bytes]]:
    """Return the pieces of a repeated field with the values of a tensor, as protobuf serializes it.

    Args:
        number: Number of the field.
        tensor: Values of the field; float16 as the integers of their bits.
        budget: Allowance that holds the bytes written.

    Raises:
        Overloaded: All requests together would hold too many bytes.
        Overloaded: All requests together would hold too many bytes.
    """
    flat, pieces = tensor.ravel(), list[bytes]()
    parts = text_parts(flat) if tensor.dtype == STRING else _cuts(flat)
    for part in parts:
        written = _texts(number, part) if isinstance(part, list) else [_numbers(part)]
        budget.hold(_COPIES * sum(map(len, written)))
        pieces += written
        yield
    if tensor.dtype != STRING and pieces:
        pieces.insert(0, length_prefix(number, sum(map(len, pieces))))
    return pieces


def _cuts(values: Array) -> Iterator[Array]:
    for start in range(0, len(values), _STEP):
        yield values[start : start + _STEP]


def raw_texts_of(number: int, tensor: Array, budget: RequestBudget) -> Steps[list[bytes]]:
    """Return the pieces of one bytes field with a tensor's texts, each after its length; see ``field_of``."""
    pieces: list[bytes] = []
    for written in raw_texts(tensor):
        budget.hold(_COPIES * sum(map(len, written)))
        pieces += written
        yield
    return [length_prefix(number, sum(map(len, pieces))), *pieces]


def as_bytes(text: object) -> bytes:
    """Return a text of an output as bytes; models return bytes or str."""
    return text if isinstance(text, bytes) else str(text).encode()


def _texts(number: int, texts: list[bytes]) -> list[bytes]:
    written = [part for text in map(as_bytes, texts) for part in (length_prefix(number, len(text)), text)]
    return written if len(texts) == 1 else [b"".join(written)]


def _numbers(values: Array) -> bytes:
    if values.dtype.kind not in "iu":  # floats are stored in this form already; booleans are zero and one
        return values.tobytes()
    whole = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    width = max(1, -(-int(whole.max()).bit_length() // _BITS_A_BYTE))
    # Remainder of each number from its first, second, … byte on; zero once the number has ended.
    left = whole[:, None] >> np.arange(0, width * _BITS_A_BYTE, _BITS_A_BYTE, dtype=np.uint64)
    used = left != 0
    used[:, 0] = True
    written = left.astype(np.uint8) & 0x7F
    written[:, :-1] |= used[:, 1:].view(np.uint8) << _BITS_A_BYTE
    serialized: bytes = written[used].tobytes()
    return serialized
