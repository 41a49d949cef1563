"""What two releases tell each other: the bytes that stay, and which protocol they find."""

from __future__ import annotations

import msgspec
import pytest

from headrace.server.handover.messages import Given, HandoverRefused, Hello, decoded, encoded, protocol


def test_the_first_words_stay_as_they_are_for_ever() -> None:
    assert encoded(Hello("9.0", (3, 2))) == b'{"type":"hello","headrace":"9.0","protocols":[3,2]}'
    assert encoded(HandoverRefused("no")) == b'{"type":"refused","why":"no"}'


def test_fields_of_a_later_release_are_left_unread() -> None:
    told = b'{"type":"hello","headrace":"9.0","protocols":[1],"moon":"full"}'
    assert decoded(told) == Hello("9.0", (1,))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"type":"moon"}',
        b'{"type":"given","protocol":1}',
        b"\xff",
        b'{"type":"refused","why":"\xff"}',
    ],
)
def test_anything_else_is_no_message(content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decoded(content)


def test_given_survives_encoding_and_decoding() -> None:
    given = Given(1, "0.1.0", 3, (0, 2), (1,), True, 1)
    assert decoded(encoded(given)) == given


@pytest.mark.parametrize(
    ("theirs", "ours", "spoken"),
    [
        ((1,), (1,), 1),
        ((2, 1), (1,), 1),
        ((3, 2), (2, 1), 2),
        ((1, 2), (2, 1), 2),
        ((2,), (1,), None),
        ((), (1,), None),
    ],
)
def test_the_highest_protocol_that_both_speak(
    theirs: tuple[int, ...], ours: tuple[int, ...], spoken: int | None
) -> None:
    assert protocol(theirs, ours) == spoken
