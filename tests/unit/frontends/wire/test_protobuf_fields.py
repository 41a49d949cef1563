"""The fields of serialized messages, walked."""

from __future__ import annotations

import pytest

from headrace.frontends.wire.protobuf_fields import fields, text_in


def test_walks_can_share_a_number_of_steps() -> None:
    steps = iter(range(10))
    assert len(list(fields(b"\x1a\x00" * 6, steps=steps))) == 6
    with pytest.raises(ValueError, match="too many fields"):
        list(fields(b"\x1a\x00" * 5, steps=steps))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", ""),
        (b"\x0a\x02ab", "ab"),
        (b"\x12\x01k\x0a\x02ab", "ab"),
        (b"\x0a\x02ab\x12\x01k\x0a\x01c", "c"),  # parsers take the last one
        (b"\x08\x07", ""),  # a number, which is another field to parsers
        (b"\x0a\x01\xff", "\ufffd"),
    ],
)
def test_the_text_of_a_field_is_what_parsers_take(message: bytes, text: str) -> None:
    assert text_in(message, 1, 10) == text


@pytest.mark.parametrize("message", [b"\x0a\x02a", b"\x1b\x1c", b"\x12\x01k" * 11])
def test_there_is_no_text_in_what_cannot_be_walked(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"ends beyond|wire type|too many"):
        text_in(message, 1, 10)
