"""The fields of serialized protobuf messages: walked without parsing them, and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT_BYTES = 10


class Field(NamedTuple):
    """One field of a serialized protobuf message.

    Attributes:
        number: The field's number.
        wire_type: How it is written.
        start: Where its value begins.
        stop: Where its value ends.
    """

    number: int
    wire_type: int
    start: int
    stop: int


def fields(
    message: bytes, start: int = 0, stop: int | None = None, *, steps: Iterator[object] | None = None
) -> Iterator[Field]:
    """Walk the fields of a serialized message, without looking into them.

    Args:
        message: The bytes.
        start: Where the message begins in them.
        stop: Where it ends.
        steps: Gives something for each field that may be walked; several walks can share it. None: all may.

    Raises:
        ValueError: There is something in it that this walk does not know, such as a group, or it is cut; or
            there are no steps left.
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
            raise ValueError(f"wire type {wire_type} at byte {position}")
        if position + size > end:
            raise ValueError(f"field {tag >> 3} ends after its message")
        yield Field(tag >> 3, wire_type, position, position + size)
        position += size


def text_in(message: bytes, number: int, most_fields: int) -> str:
    """The text in a field of a message: the last one, if there are several, as parsers have it.

    Args:
        message: The bytes.
        number: The field's number.
        most_fields: How many fields are walked at the most.

    Raises:
        ValueError: The message cannot be walked, or has more fields.
    """
    start = stop = 0
    for field in fields(message, steps=iter(range(most_fields))):
        if field.number == number and field.wire_type == LENGTH_DELIMITED:
            start, stop = field.start, field.stop
    return str(message[start:stop], errors="replace")


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """A number as protobuf writes it, and where the bytes after it begin.

    Raises:
        ValueError: There is none.
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
    """The bytes before a length-delimited field's value: its tag, and the value's size.

    Args:
        number: The field's number.
        size: The value's size in bytes.
    """
    return varint(number << 3 | LENGTH_DELIMITED) + varint(size)


def varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def field_number(kind: Any, name: str) -> int:
    """The number of a field of a message's class."""
    number: int = kind.DESCRIPTOR.fields_by_name[name].number
    return number
