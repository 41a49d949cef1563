"""Serialized protobuf messages, walked without parsing them: where fields lie, and how many there are.

Parsing pays for every field at once, whatever comes of it: two bytes of an empty message become up to 120,
and half a second goes by for a few megabytes of them. So large messages are counted first, in small steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from headrace.errors import InvalidRequest
from headrace.frontends.wire.names import check_name

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance
    from headrace.frontends.wire.lane import Lane

LENGTH_DELIMITED = 2
FIXED_BYTES = {1: 8, 5: 4}
_VARINT = 0
_LONGEST_VARINT_BYTES = 10

AT_ONCE_BYTES = 64 * 1024
"""Up to here a message is parsed as it is: the worst one takes about a millisecond and a few megabytes."""

MESSAGE_VALUES = 4
"""How many values a message within a message counts for: it takes that much more than a text."""

Result = TypeVar("Result")

_STEP_VALUES = 1024
_STEPS_AT_ONCE = 8  # half a millisecond, of what takes more than the message itself
_PACKED_STEP_BYTES = 256 * 1024


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
        elif wire_type == _VARINT:
            size = read_varint(message, position)[1] - position
        elif wire_type in FIXED_BYTES:
            size = FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {position}")
        if position + size > end:
            raise ValueError(f"field {tag >> 3} ends after its message")
        yield Field(tag >> 3, wire_type, position, position + size)
        position += size


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


# ---- Counting what parsing would pay for ----

Form = Mapping[int, Any]
"""What to look into: by a field's number, the Form of its messages, how its numbers are packed, or that it is
a name: all texts are, in these protocols, where values are bytes."""

_PACKED_VARINTS, _PACKED_FIXED, _NAME = "varints", "fixed", "name"


def field_number(kind: Any, name: str) -> int:
    """The number of a field of a message's class."""
    number: int = kind.DESCRIPTOR.fields_by_name[name].number
    return number


def form_of(kind: Any) -> Form:
    """The Form of a message's class."""
    return _form(kind.DESCRIPTOR)


@cache
def _form(descriptor: Any) -> Form:
    form: dict[int, Any] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            form[field.number] = _form(field.message_type)
        elif field.is_repeated and field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
            form[field.number] = _PACKED_FIXED
        elif field.type == field.TYPE_STRING:
            form[field.number] = _NAME
        elif field.is_repeated and field.type != field.TYPE_BYTES:
            form[field.number] = _PACKED_VARINTS
    return form


def counted(message: bytes, form: Form) -> Iterator[int]:
    """Count the values of a message, from the outside to the inside, in small steps.

    Each field is a value, and a message within ``MESSAGE_VALUES``; each packed integer is a value, packed
    floats are bytes only.

    Args:
        message: The bytes.
        form: What to look into.

    Yields:
        How many more values have been counted.

    Raises:
        InvalidRequest: It is cut off, or has a group, which no client of these protocols sends, or a name is
            too long for one.
    """
    inside = [(0, len(message), form)]
    while inside:
        yield from _counted(message, *inside.pop(), inside)


def _counted(
    message: bytes, position: int, end: int, form: Form, inside: list[tuple[int, int, Form]]
) -> Iterator[int]:
    """Count one message's own fields; what is to be looked into is put on the list."""
    found, get = 0, form.get
    try:
        while position < end:
            tag = message[position]
            position += 1
            if tag >= 0x80:
                tag, position = read_varint(message, position - 1)
            wire_type = tag & 7
            found += 1
            if wire_type == LENGTH_DELIMITED:
                size = message[position]
                position += 1
                if size >= 0x80:
                    size, position = read_varint(message, position - 1)
                known = get(tag >> 3)
                if known is not None and position + size <= end:
                    if known is _PACKED_VARINTS:
                        yield from _packed(message, position, position + size)
                    else:
                        found += _look_into(known, position, size, inside)
                position += size
            elif wire_type == _VARINT:
                while message[position] >= 0x80:
                    position += 1
                position += 1
            else:
                position += FIXED_BYTES[wire_type]
            if found >= _STEP_VALUES:
                yield found
                found = 0
    except (IndexError, ValueError, KeyError) as error:
        raise malformed(message, position) from error
    if position > end:
        raise malformed(message, position)
    yield found


def _look_into(known: Any, start: int, size: int, inside: list[tuple[int, int, Form]]) -> int:
    """Note a message within for later; give what it counts for beside being a field."""
    if known is _NAME:
        check_name(size, "message")
        return 0
    if known is _PACKED_FIXED:
        return 0
    if size:
        inside.append((start, start + size, known))
    return MESSAGE_VALUES - 1


def _packed(message: bytes, start: int, stop: int) -> Iterator[int]:
    for step in range(start, stop, _PACKED_STEP_BYTES):
        part = np.frombuffer(message, np.uint8, min(stop - step, _PACKED_STEP_BYTES), step)
        yield int(np.count_nonzero(part < 0x80))


def malformed(message: bytes, position: int) -> InvalidRequest:
    """The error of bytes that are no message, or hold a group, which no client of these protocols sends.

    Args:
        message: The bytes.
        position: Up to where they were understood.
    """
    return InvalidRequest(
        f"expected a protobuf message, got {len(message)} bytes that are not one, or hold a group (at byte "
        f"{position}); compare the client's proto files with this server's"
    )


async def charge(counts: Iterable[int], allowance: Allowance, lane: Lane) -> None:
    """Let a request pay for what is counted, with others answered in between.

    Args:
        counts: How many more values have been counted, again and again.
        allowance: What the request may cost.
        lane: Where the message is decoded, entered.

    Raises:
        TooLarge: There are more values than the request may have.
    """
    for count in counts:
        allowance.values(count, "message")
        await lane.breathe()


def at_once(steps: Generator[object, None, Result]) -> Result | None:
    """Do the first steps of something; most things have no more of them.

    Args:
        steps: The steps; to be gone on with in the lane where there are more.

    Returns:
        What they result in; None where there are more.
    """
    for _ in range(_STEPS_AT_ONCE):
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
    return None


async def in_steps(steps: Generator[object, None, Result], lane: Lane) -> Result:
    """Do something step by step, with others answered in between, and give what it results in.

    Args:
        steps: The steps.
        lane: Where they are done, entered.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await lane.breathe()
