"""JSON in slices means what it means at once, and costs what its bytes say."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, InvalidRequest, Overloaded, TooLarge
from headrace.config import Limits
from headrace.frontends.calls import Account
from headrace.frontends.wire import json_text
from headrace.frontends.wire.json_cost import has_slow_numbers
from headrace.frontends.wire.json_text import parse_at_once, parse_in_slices
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer
from tests.unit.frontends.turns import Turns

DEPTH = 64


def in_slices(text: bytes, budget: RequestBudget | None = None, depth: int = DEPTH) -> Any:
    async def parse() -> Any:
        async with TimeSlicer() as slicer:
            return await parse_in_slices(text, depth, budget or RequestBudget(Limits()), slicer)

    return asyncio.run(parse())


def tiny_slices(piece: int, part: int) -> Any:
    longest_escape = 12  # a piece of a text holds at least one
    return patch.multiple(
        json_text,
        _PIECE_BYTES=piece,
        _PART_BYTES=part,
        _PART_MARKS=part,
        _TEXT_BYTES=piece + longest_escape,
    )


TEXTS = st.text(st.sampled_from('ab"\\[]{},: \né\u0000'), max_size=6)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=30,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(1, 9), st.integers(1, 20))
@example("\\" * 3 + '"', True, None, 1, 1)
def test_slices_of_any_size_give_what_one_parse_gives(
    value: Any, ascii_only: bool, indent: int | None, piece: int, part: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    with tiny_slices(piece, part):
        assert in_slices(text) == json.loads(text)


@pytest.mark.parametrize("around", [b"%s", b"[%s]", b'{"a":[%s,1]}', b"[ \n%s , 2 ]"])
def test_a_number_as_long_as_a_book_is_refused_before_it_is_parsed(around: bytes) -> None:
    assert in_slices(around % (b"0." + b"1" * 16_000))
    parsed: list[int] = []
    with (
        patch.object(json_text, "_decode", lambda text: parsed.append(len(text)) or json.loads(text)),
        pytest.raises(InvalidRequest, match="a number of at most 16384 characters, got 100000 characters"),
    ):
        in_slices(around % (b"7" * 100_000))
    assert max(parsed, default=0) < 100


@pytest.mark.parametrize("around", [b"%s[1]", b"[1]%s", b"[%s]", b"[%s1]", b"[1%s]", b'["a"%s]'])
def test_white_space_is_passed_over_piece_by_piece(around: bytes) -> None:
    text = around % (b" \n" * 200_000)
    assert in_slices(text) == json.loads(text)


@pytest.mark.parametrize(
    "unit", ["a", "é", "😀", r"\n", r"\ud83d\ude00", r"\u0000", r"some words\n and \"more\" "]
)
@pytest.mark.parametrize("before", range(14))
def test_a_long_text_is_parsed_in_pieces(unit: str, before: int) -> None:
    text = ('{"a": ["' + before * "x" + 100 * unit + '" ]}').encode()
    with tiny_slices(40, 1):
        assert in_slices(text) == json.loads(text)


@pytest.mark.parametrize(
    "wrong", [b'"%s" "b"', b'"a%s\n"', b'"%s\xff"', b'"%s\\"', b'"%s"b', b"'%s'", b'"""%s"', b'"%s""', b'%s"']
)
def test_what_is_no_long_text_is_refused(wrong: bytes) -> None:
    with tiny_slices(40, 1), pytest.raises(InvalidRequest):
        in_slices(b"[" + wrong % (100 * b"x") + b"]")


@given(VALUES, st.data(), st.integers(1, 9), st.integers(1, 20))
@example([0], None, 1, 1)
def test_what_is_no_json_at_once_is_none_in_slices(
    value: Any, data: st.DataObject | None, piece: int, part: int
) -> None:
    text = bytearray(json.dumps(value).encode())
    if data is None:
        text = bytearray(b"[0,]")
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(text)))
            with_what: str = data.draw(st.sampled_from(["", *'[]{},:"\\ 01']))
            text[place : place + data.draw(st.integers(0, 1))] = with_what.encode()
    try:
        wanted = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with tiny_slices(piece, part), pytest.raises(InvalidRequest):
            in_slices(bytes(text))
    else:
        with tiny_slices(piece, part):
            assert in_slices(bytes(text)) == wanted


@pytest.mark.parametrize("text", [b"[NaN, 1, -Infinity]", b'{"a": [Infinity, "NaN"]}'])
def test_numbers_that_json_lacks_are_taken_in_slices_too(text: bytes) -> None:
    with tiny_slices(4, 4):
        assert repr(in_slices(text)) == repr(json.loads(text))


def test_depth_is_checked_before_anything_is_parsed() -> None:
    text = b"[" * 65 + b'"' + b'\\"' * 32_000  # not closed: only the depth can be what is found
    for parse in (lambda: parse_at_once(text, DEPTH), lambda: in_slices(text)):
        with pytest.raises(InvalidRequest, match="at most 64 deep"):
            parse()
    assert in_slices(b"[" * 64 + b"]" * 64) == parse_at_once(b"[" * 64 + b"]" * 64, DEPTH)


def test_brackets_within_strings_are_no_depth() -> None:
    assert parse_at_once(b'["' + b"[" * 200 + b'"]', DEPTH) == ["[" * 200]
    with pytest.raises(InvalidRequest, match="deep"):  # nor do they take any away
        parse_at_once(b'["]",' * 65 + b"0" + b"]" * 65, DEPTH)


@pytest.mark.parametrize(
    ("unit", "values"),
    [(b"0", 1), (b"[]", 1), (b"[0]", 2), (b"{}", 1), (b'{"a":0}', 3), (b'"[,:]"', 1), (b'"\\"["', 1)],
)
def test_values_are_counted_before_they_are_made(unit: bytes, values: int) -> None:
    items = 30_000  # several pieces of text
    text = b"[" + b",".join([unit] * items) + b"]"
    exactly = Limits(max_values=items * values)
    assert len(in_slices(text, RequestBudget(exactly))) == items
    fewer = Limits(max_values=items * values - 1)
    with pytest.raises(TooLarge, match=r"^body: expected at most .* values .*limits\.max_values"):
        in_slices(text, RequestBudget(fewer))


@pytest.mark.parametrize("unit", [b"0", b"[]", b"[0]", b"{}", b'""', b'{"":0}', b"[[0]]"])
def test_a_body_that_came_uncompressed_has_the_bytes_for_its_values(unit: bytes) -> None:
    text = b"[" + b",".join([unit] * 100_000) + b"]"
    assert len(in_slices(text, RequestBudget(Limits()))) == 100_000


@pytest.mark.parametrize("text", [b"[" + b"[]" * 500_000 + b"]", b"[" + b"{}[] 1" * 200_000 + b"]"])
def test_brackets_without_commas_between_are_refused_before_they_take_memory(text: bytes) -> None:
    """Empty pairs count as no values, so all were kept: 30 bytes of memory for each byte, uncounted."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="a comma is missing before byte"):
            in_slices(text, RequestBudget(Limits()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


def deep_around_many(depth: int) -> bytes:
    return b"[" * depth + b",".join([b"0"] * 1_000_000) + b"]" * depth


def test_the_deeper_marks_are_the_more_turns_others_have() -> None:
    """Each level went over all marks again, in steps that nobody could end."""

    def turns(text: bytes, depth: int) -> int:
        others = Turns()

        async def parse() -> Any:
            async with others, TimeSlicer() as slicer:
                return await parse_in_slices(text, 250, RequestBudget(Limits()), slicer)

        with patch("headrace.frontends.wire.time_slicer._SLICE_SECONDS", 0.0):
            found = asyncio.run(parse())
        for _ in range(depth - 1):
            (found,) = found
        assert found == [0] * 1_000_000
        return others.count

    flat = turns(deep_around_many(1), 1)
    assert flat > 500
    assert turns(deep_around_many(250), 250) > flat


@pytest.mark.timing
def test_marks_cost_no_more_the_deeper_they_are() -> None:
    """Each level went over all marks again: four times as long in all, in steps that nobody could end."""
    flat, deep = deep_around_many(1), deep_around_many(250)

    def seconds(text: bytes) -> float:
        started = time.thread_time()
        in_slices(text, depth=250)
        return time.thread_time() - started

    # In turns, so that a machine that is slow for a while is slow for both. It comes to 1.3 times.
    taken = [(seconds(deep), seconds(flat)) for _ in range(6)]
    assert min(one for one, _ in taken) < 3 * min(one for _, one in taken)


def test_what_nests_deeper_than_python_goes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="with less nesting"):
        in_slices(deep_around_many(500), depth=512)


def test_a_parsed_document_counts_in_the_byte_budget() -> None:
    taken = 0

    def take(size: int) -> None:
        nonlocal taken
        if taken + size > 2_000_000:
            raise Overloaded("full")
        taken += size

    text = b"[" + b",".join([b"[]"] * 20_000) + b"]"
    in_slices(text, RequestBudget(Limits(), Account(take)))
    assert taken > 1_000_000 // 2
    with pytest.raises(Overloaded):
        in_slices(text, RequestBudget(Limits(), Account(take)))


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        (b"[1e-320,1e-320,1e-320,1e-320,1e-320]", True),
        (b"[20749139528992099900e281, 1E+281,1e281,1e281,1e281]", True),
        (b'{"eeee": [0.1, -2.5E0300]}', True),
        (b"[1e-5,1e-05,1e5,1E+5,1e-9]", False),
        (b'["site12e34", "e-100", "eeeee", "cafe12"]', False),
        (b"[1e-320]", False),  # too few to matter
    ],
)
def test_numbers_that_are_slow_to_parse_are_told_from_others(text: bytes, slow: bool) -> None:
    assert has_slow_numbers(text) is slow
    assert in_slices(text) == json.loads(text)


def test_half_a_surrogate_pair_is_no_text_among_slow_numbers_either() -> None:
    numbers = b"1e-320,1e-320,1e-320,1e-320,1e-320"
    assert parse_at_once(b'["\\ud83d\\ude00",' + numbers + b"]", DEPTH)[0] == "\U0001f600"
    with pytest.raises(InvalidRequest, match="surrogates not allowed"):
        parse_at_once(b'["\\ud800",' + numbers + b"]", DEPTH)


@pytest.mark.parametrize("parse", [lambda text: parse_at_once(text, DEPTH), in_slices])
def test_msgspec_parses_no_numbers_with_extreme_exponents(parse: Callable[[bytes], Any]) -> None:
    """It takes 10 to 50 µs for each: 64 KB of them held everybody up for 0.2 s."""
    given, decode = list[bytes](), json_text._decode

    def record(text: bytes) -> Any:
        given.append(text)
        return decode(text)

    with patch.object(json_text, "_decode", record):
        plain = b"[" + b",".join([b"1.25e-3"] * 8000) + b"]"
        assert parse(plain) == [1.25e-3] * 8000
        assert given, "msgspec parses the others"
        for number in (b"1e-320", b"20749139528992099900e281", b"4.9406564584124654e-324"):
            given.clear()
            assert parse(b"[" + b",".join([number] * 8000) + b"]") == [float(number)] * 8000
            assert not given, number


@pytest.mark.parametrize("text", [b"[1.5,1e400,-1e400]", b"[1.5,1e400,-1e999999999" + b",1e400" * 5 + b"]"])
def test_numbers_that_no_float_can_hold_become_larger_ones(text: bytes) -> None:
    """Whoever knows the input they are for refuses them by its name."""
    for found in (parse_at_once(text, DEPTH), in_slices(text)):
        assert found[:3] == [1.5, 10**400, -(10**400)]


def test_integers_of_thousands_of_digits_are_refused() -> None:
    text = b"[" + b"9" * 5000 + b"]"
    for parse in (lambda: parse_at_once(text, DEPTH), lambda: in_slices(text)):
        with pytest.raises(HeadraceError):
            parse()
