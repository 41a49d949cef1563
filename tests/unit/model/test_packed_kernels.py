"""Outlines of messages: the same for the same kind, and nothing for what is no message."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.model.packed_kernels import DEPTH, FORM_FIELDS, VALUE, outline

# Field 1 is a message with a value in its field 2, field 3 is a value.
FORM = np.zeros((2, FORM_FIELDS), np.int8)
FORM[0, 1], FORM[0, 3], FORM[1, 2] = 1, VALUE, VALUE


def outlined(message: bytes, room: int = 64, values: int = 8) -> tuple[bytes, list[bytes]] | None:
    out, spans = np.empty(room, np.uint8), np.empty(2 * (values + DEPTH), np.int64)
    written, found = outline(np.frombuffer(message, np.uint8), FORM, out, spans)
    if written < 0:
        return None
    places = spans[: 2 * found].reshape(-1, 2).tolist()
    return bytes(out[:written]), [message[start:stop] for start, stop in places]


def test_values_are_left_out_but_counted() -> None:
    one = outlined(b"\x1a\x03abc\x1a\x00\x0a\x06\x08\x05\x12\x02xy\x20\x01")
    other = outlined(b"\x1a\x00\x1a\x01c\x0a\x05\x08\x05\x12\x01z\x20\x01")
    assert one is not None
    assert other is not None
    assert one[0] == other[0] == b"\x1a\2\0\0\0" + b"\x0a\x08\x05\x12\1\0\0\0" + b"\0" + b"\x20\x01"
    assert (one[1], other[1]) == ([b"abc", b"", b"xy"], [b"", b"c", b"z"])


@pytest.mark.parametrize(
    "message",
    [
        b"\x1a\x03abc\x1a\x00\x1a\x00\x0a\x06\x08\x05\x12\x02xy\x20\x01",
        b"\x1a\x03abc\x0a\x06\x08\x05\x12\x02xy\x1a\x00\x20\x01",
        b"\x1a\x03abc\x1a\x00\x0a\x06\x08\x06\x12\x02xy\x20\x01",
        b"\x1a\x03abc\x1a\x00\x0a\x06\x08\x05\x12\x02xy\x20\x02",
        b"\x1a\x03abc\x1a\x00\x0a\x08\x08\x05\x12\x02xy\x20\x01",
        b"\x1a\x03abc\x1a\x00\x0a\x0c\x08\x05\x12\x02xy\x12\x04\x08\x05ab\x20\x01",
    ],
)
def test_what_differs_but_for_values_has_another_outline(message: bytes) -> None:
    one = outlined(b"\x1a\x03abc\x1a\x00\x0a\x06\x08\x05\x12\x02xy\x20\x01")
    other = outlined(message)
    assert one is not None
    assert other is None or other[0] != one[0]


@pytest.mark.parametrize(
    "message",
    [
        b"\x1a\x03ab",
        b"\x1a",
        b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a\x03\x12\x02a",
        b"\x00",
        b"\x08",
        b"\x08" + b"\xff" * 11,
        b"\x0b\x0c",
        b"\x09" + b"1234567",
        b"\x0d" + b"123",
        b"\x1a\x80",
    ],
)
def test_what_is_no_message_or_has_a_group_has_none(message: bytes) -> None:
    assert outlined(message) is None


def test_no_more_is_written_than_there_is_room_for() -> None:
    message = b"\x22\x0a0123456789"
    assert outlined(message, room=12) == (message, [])
    assert outlined(message, room=11) is None
    assert outlined(b"\x1a\x00", room=4) is None
    assert outlined(b"\x1a\x00" * 8) is not None
    assert outlined(b"\x1a\x00" * 9) is None
    assert outlined(b"\x0a\x00", room=1) is None
