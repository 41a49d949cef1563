"""Fields of serialized protobuf messages: walk them without parsing, and write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT_BYTES = 10


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
