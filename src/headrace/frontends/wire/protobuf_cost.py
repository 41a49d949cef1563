"""Count the cost of parsing a protobuf message in advance, in small steps, and decode it accordingly.

Parsing pays for every field at once, even for unused ones: two bytes of an empty message become up to 120,
and a few megabytes of them take half a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.frontends.wire.protobuf_fields import FIXED_BYTES, LENGTH_DELIMITED, VARINT, read_varint
from headrace.frontends.wire.request_budget import check_name
from headrace.frontends.wire.time_slicer import Steps, TimeSlicer, at_once, in_steps

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

Decoded = TypeVar("Decoded")
Result = TypeVar("Result")

AT_ONCE_BYTES = 64 * 1024
"""Size up to which a message is parsed uncounted: the worst takes about a millisecond and a few megabytes."""

MESSAGE_VALUES = 4
"""Number of values that a nested message counts as: it costs that much more than a text."""

_STEP_VALUES = 1024
_PACKED_STEP_BYTES = 256 * 1024

Form = Mapping[int, Any]
"""Fields to inspect, by number: the Form of a message, the packing of numbers, or the mark of a name.

In these protocols all texts are names; values are bytes.
"""

_PACKED_VARINTS, _PACKED_FIXED, _NAME = "varints", "fixed", "name"


def form_of(kind: Any) -> Form:
    """Return the Form of a message class."""
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
    """Count the values of a message, outer messages first, in small steps.

    Each field is a value, and a nested message counts as ``MESSAGE_VALUES``. Each packed integer is a value;
    packed floats are bytes only.

    Args:
        message: Serialized message.
        form: Fields to inspect.

    Yields:
        Number of values counted since the last step.

    Raises:
        InvalidRequest: The message is truncated, a name in it is too long, or it has a group, which no client
            of these protocols sends.
    """
    inside = [(0, len(message), form)]
    while inside:
        yield from _counted(message, *inside.pop(), inside)


def _counted(
    message: bytes, position: int, end: int, form: Form, inside: list[tuple[int, int, Form]]
) -> Iterator[int]:
    """Count one message's own fields, and append nested messages to ``inside``."""
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
            elif wire_type == VARINT:
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
    """Queue a nested message for counting; return the number of values it counts as beside its field."""
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
    """Return the error for bytes that are no message, or hold a group, which no known client sends.

    Args:
        message: The bytes.
        position: Position up to which they were understood.
    """
    return InvalidRequest(
        f"expected a protobuf message, got {len(message)} bytes that are not one, or hold a group (at byte "
        f"{position}); compare the client's proto files with this server's"
    )


async def charge(counts: Iterable[int], budget: RequestBudget, slicer: TimeSlicer) -> None:
    """Charge a request for counted values, with other requests served in between.

    Args:
        counts: Numbers of further values counted.
        budget: Limits on the cost of the request.
        slicer: Time slicer, entered by the caller.

    Raises:
        TooLarge: The request has too many values.
    """
    for count in counts:
        budget.values(count, "message")
        await slicer.breathe()


async def decode_and_ask(
    message: bytes,
    form: Form,
    steps: Steps[Decoded],
    ask: Callable[[Decoded], Awaitable[Result]],
    budget: RequestBudget,
    slicer: TimeSlicer,
) -> tuple[Decoded, Result]:
    """Decode a message that matches no template, submit its request, and wait for the answer.

    It is decoded at once, or in slices. A large one is counted first.

    Args:
        message: Serialized message.
        form: Fields to inspect when the message is counted.
        steps: Steps that decode the message.
        ask: Function that submits the request. It is called in the event-loop iteration in which decoding
            ends, because nothing keeps the version loaded after that.
        budget: Limits on the cost of the request.
        slicer: Time slicer in which a long decode runs, and which is left before the answer is awaited.

    Returns:
        The decoded request, and the answer.

    Raises:
        TooLarge: The request has too many values.
    """
    is_large = len(message) > AT_ONCE_BYTES
    found = None if is_large else at_once(steps)
    if found is not None:
        return found, await ask(found)
    async with slicer:
        if is_large:
            await charge(counted(message, form), budget, slicer)
            budget.hold(len(message))  # for the tensors, which are copied from it
        found = await in_steps(steps, slicer)
        answering = ask(found)
    return found, await answering
