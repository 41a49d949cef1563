"""Fields of serialized protobuf messages: walk them without parsing, and write them.

Many values are written in small steps: NumPy makes the bytes, not one object per value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.base.tensors import STRING, Array
from headrace.frontends.wire.texts import raw_texts, text_parts
from headrace.frontends.wire.time_slicer import Steps

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT_BYTES = 10

WRITTEN_AT_ONCE = 4096
"""Number of values up to which protobuf writes an output at once, which is faster for few values."""

_BYTES_AT_ONCE = 1024 * 1024

_STEP = 4096
_BITS_A_BYTE = 7
_COPIES = 2  # the pieces, and the message that they are joined into


class Field(NamedTuple):
    """One field of a serialized protobuf message.

    Attributes:
        number: Number of the field.
        wire_type: Wire type.
        start: Position where its value begins.
        stop: Position where its value ends.
    """

    number: int
    wire_type: int
    start: int
    stop: int


def fields(
    message: bytes, start: int = 0, stop: int | None = None, *, steps: Iterator[object] | None = None
) -> Iterator[Field]:
    """Yield the fields of a serialized message, without looking into them.

    Args:
        message: Bytes that contain the message.
        start: Position where the message begins.
        stop: Position where it ends; None for the end of the bytes.
        steps: Iterator that limits the number of fields: each takes one item. Several walks can share it.
            None for no limit.

    Raises:
        ValueError: The message is truncated, contains something unsupported such as a group, or has more
            fields than ``steps`` has items.
    """
    end = len(message) if stop is None else stop
    position = start
    while position < end:
        if steps is not None and next(steps, None) is None:
            raise ValueError("too many fields")
        tag, position = read_varint(message, position)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            size, position = read_varint(message, position)
        elif wire_type == VARINT:
            size = read_varint(message, position)[1] - position
        elif wire_type in FIXED_BYTES:
            size = FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"unsupported wire type {wire_type} at byte {position}")
        if position + size > end:
            raise ValueError(f"field {tag >> 3} ends beyond its message")
        yield Field(tag >> 3, wire_type, position, position + size)
        position += size


def text_in(message: bytes, number: int, most_fields: int) -> str:
    """Return the text in a field of a message; the last one if there are several, as parsers do.

    Args:
        message: Serialized message.
        number: Number of the field.
        most_fields: Largest number of fields to walk.

    Raises:
        ValueError: The message cannot be walked, or has more fields.
    """
    start = stop = 0
    for field in fields(message, steps=iter(range(most_fields))):
        if field.number == number and field.wire_type == LENGTH_DELIMITED:
            start, stop = field.start, field.stop
    return str(message[start:stop], errors="replace")


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it.

    Raises:
        ValueError: There is no complete varint.
    """
    value = 0
    for index in range(_LONGEST_VARINT_BYTES):
        if position + index >= len(message):
            break
        byte = message[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError(f"no varint at byte {position}")


def length_prefix(number: int, size: int) -> bytes:
    """Return the bytes before a length-delimited field's value: its tag, and the value's size.

    Args:
        number: Number of the field.
        size: Size of the value in bytes.
    """
    return varint(number << 3 | LENGTH_DELIMITED) + varint(size)


def varint(value: int) -> bytes:
    """Return a number as a varint: seven bits per byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def field_number(kind: Any, name: str) -> int:
    """Return the number of a field of a message class."""
    number: int = kind.DESCRIPTOR.fields_by_name[name].number
    return number


# --- fields of many values ---


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
