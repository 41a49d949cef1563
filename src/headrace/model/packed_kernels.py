"""Compiled kernels: compute a protobuf message's outline, the message without values, and locate its texts.

Messages of one kind have the same outline, however long their values are. A message with a known outline
need not be parsed: only its values are new. The kernels never read outside the message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached
from headrace.model.packed_columns import HEAD, PLACE

LITERAL, VALUE = 0, -1
"""Actions for a field: copy it into the outline; or copy only its tag, and record the span of its bytes.
An action above 0 is the form of a nested message."""

FORM_FIELDS = 16
"""Fields with this number or a higher one are copied into the outline."""

DEPTH = 4
"""Maximum nesting depth of messages that contain values."""

PLAN = 5
"""Entries per input in a plan: index of its first place, index of its first value in the outline, number of
texts or bytes, encoding, and whether one row stands for many. The encoding is ``BYTES``, ``RAW_TEXTS`` (one
value holds all texts) or ``SINGLE_TEXTS`` (each text is a value)."""

BYTES, RAW_TEXTS, SINGLE_TEXTS = 0, 1, 2

_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT, _SMALL_VARINT = 10, 4
_LENGTH_BYTES = _COUNT_BYTES = 4
_END = np.zeros(1, np.uint8)


@njit(inline="always")
def _varint(message: Any, position: int, end: int) -> tuple[Any, int]:
    """Return a varint's value and its end.

    The value is -1 beyond 28 bits, which no tag or size here exceeds. The end is -1 if the varint is cut off
    or too long.
    """
    value, most = np.int64(0), min(end, position + _LONGEST_VARINT)
    for at in range(position, most):
        byte = np.int64(message[at])
        if at - position < _SMALL_VARINT:
            value |= (byte & 0x7F) << (7 * (at - position))
        if byte < 0x80:
            return (value if at - position < _SMALL_VARINT else np.int64(-1)), at + 1
    return np.int64(-1), -1


@njit(inline="always")
def _field(message: Any, position: int, end: int) -> tuple[int, int, int, int]:
    """Return a field's tag, the tag's end, and the value's start and end; the last is -1 if malformed."""
    tag, tag_end = _varint(message, position, end)
    start, stop = tag_end, -1
    wire_type = tag & 7
    if tag < 8 or tag_end < 0:  # field number 0, or one that is too large
        return 0, 0, 0, -1
    if wire_type == _LENGTH_DELIMITED:
        size, start = _varint(message, tag_end, end)
        if start >= 0 and 0 <= size <= end - start:
            stop = start + size
    elif wire_type == _VARINT:
        _, stop = _varint(message, tag_end, end)
    elif wire_type == _FIXED_64 and tag_end + 8 <= end:
        stop = tag_end + 8
    elif wire_type == _FIXED_32 and tag_end + 4 <= end:
        stop = tag_end + 4
    return tag, tag_end, start, stop


@njit(inline="always")
def _copy(message: Any, start: int, stop: int, out: Any, at: int) -> int:
    """Copy part of a message; return the end of the copy, or -1 if it does not fit."""
    if at < 0 or stop < start or at + stop - start > len(out):
        return -1
    for index in range(stop - start):
        out[at + index] = message[start + index]
    return at + stop - start


@njit(inline="always")
def _counted(count: int, out: Any, at: int) -> int:
    """Write the length of a run of values, if it is not 0; return as ``_copy`` does."""
    if count == 0 or at < 0:
        return at
    if at + _COUNT_BYTES > len(out):
        return -1
    for index in range(_COUNT_BYTES):
        out[at + index] = count >> (8 * index) & 0xFF
    return at + _COUNT_BYTES


@cached(nogil=True)
def outline(message: Array, form: Array, out: Array, spans: Array) -> tuple[int, int]:
    """Write a message's outline, and the spans of its values.

    A run of values of one kind is written as its tag and its length, in four bytes. A nested message is
    written without its size, and ends with a zero byte; no field begins with one.

    Args:
        message: The message: uint8, read-only.
        form: Action for each field: int8 ``[forms, FORM_FIELDS]``; the first form is the message's own.
        out: Receives the outline: uint8.
        spans: Receives the start and end of each value: int64; its end serves as a stack.

    Returns:
        The outline's size in bytes and the number of values; -1 twice if the message is malformed, is too
        large for the arrays, or has a group.
    """
    position, end, written, found = 0, len(message), 0, 0
    depth, level, stack = 0, 0, len(spans) - 2 * DEPTH
    run_tag, run = -1, 0  # tag and length of the current run of values
    while depth > 0 or position < end:
        if position == end:
            depth -= 1
            end, level = spans[stack + 2 * depth], spans[stack + 2 * depth + 1]
            written = _copy(_END, 0, 1, out, _counted(run, out, written))
            run_tag, run = -1, 0
            if written < 0:
                return -1, -1
            continue
        tag, tag_end, start, stop = _field(message, position, end)
        action = LITERAL
        if tag & 7 == _LENGTH_DELIMITED and tag >> 3 < FORM_FIELDS:
            action = form[level, tag >> 3]
        if action != VALUE or tag != run_tag:
            copied = stop if action == LITERAL else tag_end
            written = _copy(message, position, copied, out, _counted(run, out, written))
            run_tag, run = tag, 0
        if stop < 0 or written < 0 or 2 * found == stack or depth == DEPTH:
            return -1, -1
        position = stop
        if action == VALUE:
            spans[2 * found], spans[2 * found + 1] = start, stop
            found += 1
            run += 1
        elif action > 0:
            spans[stack + 2 * depth], spans[stack + 2 * depth + 1] = end, level
            depth += 1
            position, end, level = start, stop, action
    written = _counted(run, out, written)
    return (written, found) if written >= 0 else (-1, -1)


@cached(nogil=True)
def arrange(message: Array, spans: Array, plan: Array, most_spread: int, places: Array) -> int:
    """Write a request's places; see ``headrace.model.packed_columns``.

    Args:
        message: The message.
        spans: The spans of its values.
        plan: The plan of its kind: the request's rows, the number of text inputs, and each input's ``PLAN``.
        most_spread: Limit on the bytes of text; applies if one row of some text input stands for many.
        places: Receives the places; exactly as long as they are.

    Returns:
        Bytes of text; -1 if they exceed the limit, or if an input has another number of texts or bytes than
        planned.
    """
    rows, texts = plan[0], plan[1]
    places[0], places[1], places[2] = len(places), rows, len(message)
    total, text, spread = 0, 0, False
    for at in range(2, len(plan), PLAN):
        to, first, count, how, once = plan[at], plan[at + 1], plan[at + 2], plan[at + 3], plan[at + 4]
        if how == BYTES:
            start, stop = spans[2 * first], spans[2 * first + 1]
            if stop - start != count:
                return -1
            places[to], places[to + 1] = start, stop
            continue
        sum_: Any = 0
        if how == SINGLE_TEXTS:
            for index in range(count):
                start, stop = spans[2 * (first + index)], spans[2 * (first + index) + 1]
                places[to + 2 * index], places[to + 2 * index + 1] = start, stop - start
                sum_ += stop - start
        else:
            position: Any = spans[2 * first]
            stop = spans[2 * first + 1]
            for index in range(count):
                if position + _LENGTH_BYTES > stop:
                    return -1
                size = (
                    np.int64(message[position])
                    | np.int64(message[position + 1]) << 8
                    | np.int64(message[position + 2]) << 16
                    | np.int64(message[position + 3]) << 24
                )
                position += _LENGTH_BYTES
                if size > stop - position:
                    return -1
                places[to + 2 * index], places[to + 2 * index + 1] = position, size
                position += size
                sum_ += size
            if position != stop:
                return -1
        places[HEAD + text] = 1 if once else rows
        text += 1
        total += sum_ * rows if once else sum_
        spread |= once != 0
    if text != texts or (spread and total > most_spread):
        return -1
    return total


def run_once() -> None:
    """Call all kernels once, so that they are compiled, or loaded from the cache."""
    message = np.frombuffer(b"\x0a\x04\x00\x00\x00\x00", np.uint8)
    form = np.full((1, FORM_FIELDS), VALUE, np.int8)
    spans = np.zeros(16, np.int64)
    outline(message, form, np.empty(64, np.uint8), spans)
    plan = np.array([1, 1, HEAD + 1, 0, 1, RAW_TEXTS, 0], np.int64)
    arrange(message, spans, plan, 0, np.empty(HEAD + 3, PLACE))
