"""Messages that repeat are recognised; what differs by a byte outside the tensors is not."""

from __future__ import annotations

from typing import TypeVar

import pytest

from headrace.frontends.wire.protobuf_fields import fields, length_prefix, varint
from headrace.frontends.wire.tensor_templates import Serialized, Templates

Value = TypeVar("Value")

MESSAGE = b"head" + b"AAAA" + b"--" + b"BB" + b"tail"
SPANS = [(4, 8), (10, 12)]


def learnt() -> Templates[str]:
    templates: Templates[str] = Templates()
    templates.learn(MESSAGE, len(MESSAGE), SPANS, "known")
    return templates


def find(templates: Templates[Value], message: Serialized) -> tuple[Value, tuple[Serialized, ...]] | None:
    return templates.find(message, len(message))


def test_a_message_with_other_tensors_is_recognised_and_cut() -> None:
    assert find(learnt(), b"headxyzw--12tail") == ("known", (b"xyzw", b"12"))


@pytest.mark.parametrize("position", [0, 3, 8, 9, 12, 15])
def test_a_message_with_another_skeleton_is_not_recognised(position: int) -> None:
    changed = bytearray(MESSAGE)
    changed[position] ^= 1
    assert find(learnt(), bytes(changed)) is None


def test_a_message_of_another_length_is_not_recognised() -> None:
    assert find(learnt(), MESSAGE + b"x") is None


def test_a_large_message_is_cut_without_copying_its_large_tensors() -> None:
    large, small = bytes(range(256)) * 400, b"BB"
    message = b"head" + large + b"--" + small + b"tail"
    spans = [(4, 4 + len(large)), (6 + len(large), 8 + len(large))]
    templates: Templates[str] = Templates()
    templates.learn(message, len(message), spans, "known")
    other = b"head" + large[::-1] + b"--" + b"xy" + b"tail"
    for came in (other, memoryview(b"prefix" + other)[6:]):
        found = find(templates, came)
        assert found is not None
        value, (first, second) = found
        assert (value, bytes(first), second) == ("known", large[::-1], b"xy")
        assert isinstance(first, memoryview)
        assert first.obj is (came.obj if isinstance(came, memoryview) else came)
        assert isinstance(second, bytes)
    assert find(templates, b"HEAD" + other[4:]) is None
    assert find(templates, memoryview(other[:-1] + b"L")) is None


def test_messages_of_one_length_are_told_apart() -> None:
    templates = learnt()
    templates.learn(b"HEAD" + MESSAGE[4:], len(MESSAGE), SPANS, "other")
    found, also = find(templates, MESSAGE), find(templates, b"HEAD" + MESSAGE[4:])
    assert found is not None
    assert also is not None
    assert (found[0], also[0]) == ("known", "other")


def test_of_one_length_the_message_used_longest_ago_is_forgotten_first() -> None:
    templates, others = learnt(), [bytes([number]) * 4 + MESSAGE[4:] for number in range(30)]
    for other in others:  # another client's, one for each of ours
        templates.learn(other, len(other), SPANS, "other")
        assert find(templates, MESSAGE) is not None
    assert find(templates, others[0]) is None
    assert find(templates, others[-1]) is not None


def test_a_message_of_another_key_is_not_recognised() -> None:
    templates: Templates[str] = Templates()
    for version in ("first", "second"):
        templates.learn(MESSAGE, (version, len(MESSAGE)), SPANS, version)
    for version in ("first", "second"):
        found = templates.find(MESSAGE, (version, len(MESSAGE)))
        assert found is not None
        assert found[0] == version
    assert templates.find(MESSAGE, ("third", len(MESSAGE))) is None


def test_learning_again_replaces_what_was_known() -> None:
    templates = learnt()
    templates.learn(MESSAGE, len(MESSAGE), SPANS, "newer")
    found = find(templates, MESSAGE)
    assert found is not None
    assert found[0] == "newer"


def test_endless_kinds_of_messages_do_not_take_endless_memory() -> None:
    templates: Templates[int] = Templates()
    for size in range(3000):
        templates.learn(b"h" * 5 + b"x" * size, 5 + size, [(5, 5 + size)], size)
    for letter in range(200):
        templates.learn(bytes([letter]) * 8, 8, [(2, 4)], letter)
    kept = sum(len(same) for same in templates._by_key.values())
    assert kept == templates._kept <= 2048
    assert find(templates, bytes([199]) * 8) is not None
    for size in range(1100, 3000):  # those that came last are not forgotten with the oldest
        assert find(templates, b"h" * 5 + b"x" * size) is not None


def test_a_large_skeleton_is_not_kept() -> None:
    templates: Templates[str] = Templates()
    templates.learn(b"h" * 5000 + b"x", 5001, [(5000, 5001)], "large")
    assert find(templates, b"h" * 5000 + b"x") is None


@pytest.mark.parametrize(
    ("value", "written"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_varints_are_written_seven_bits_a_byte(value: int, written: bytes) -> None:
    assert varint(value) == written


def test_fields_are_walked_without_looking_into_them() -> None:
    message = b"\x08\x96\x01" + length_prefix(2, 3) + b"abc" + b"\x1d1234" + b"\x2112345678"
    found = [(field.number, message[field.start : field.stop]) for field in fields(message)]
    assert found == [(1, b"\x96\x01"), (2, b"abc"), (3, b"1234"), (4, b"12345678")]


@pytest.mark.parametrize("message", [b"\x0b\x0c", b"\x12\x05ab", b"\x80" * 11, b"\x08"])
def test_a_walk_stops_at_what_it_does_not_know(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"wire type|ends beyond|no varint"):
        list(fields(message))
