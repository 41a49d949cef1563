"""Every error that headrace raises on purpose: its message is bounded, whatever was put into it."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.base import errors
from headrace.base.errors import (
    LONGEST_MESSAGE,
    HeadraceError,
    InvalidRequest,
    NotFound,
    instead,
    listed,
    shown,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadraceError)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_message_keeps_its_beginning_and_its_end(kind: type[HeadraceError]) -> None:
    error = kind(f"expected a name, got {'x' * 20_000_000!r}; see the table of models")
    assert len(error.message) == LONGEST_MESSAGE
    assert str(error) == error.message
    assert "expected a name, got 'xxx" in error.message
    assert "characters in all" in error.message
    assert error.message.endswith("xxx'; see the table of models")


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_message_stays_as_it_is(kind: type[HeadraceError]) -> None:
    assert kind("one").message.endswith("one")


def test_a_long_field_is_cut_too() -> None:
    assert len(InvalidRequest("unknown input", field="x" * 10**6).message) == LONGEST_MESSAGE


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogates_are_escaped(kind: type[HeadraceError]) -> None:
    error = kind("unknown feature ‘\ud800’ — é")
    assert error.message.endswith("unknown feature ‘\\ud800’ — é")
    assert str(error).encode()
    assert len(kind("\ud800" * 10_000).message) == LONGEST_MESSAGE
    assert InvalidRequest("too large", field="\udfff").message == "\\udfff: too large"


@pytest.mark.parametrize("text", ["\ue000" * 100_000, b"\x00" * 100_000])
def test_long_text_is_cut_before_it_is_formatted(text: str | bytes) -> None:
    tracemalloc.start()
    try:
        said = shown(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said == f"{text[:100]!r} … (100000 in all)"
    assert peak < 10_000
    assert shown(text[:100]) == repr(text[:100])


def test_an_error_without_a_message_has_its_class_name() -> None:
    assert HeadraceError().message == "HeadraceError"


def test_of_many_names_a_message_has_the_first_and_how_many_more_there_are() -> None:
    assert listed(["a", 7, "c"]) == "a, 7, c"
    assert listed((f"n{number}" for number in range(7)), most=2) == "n0, n1 and 5 more"
    assert listed([]) == ""


def test_the_error_for_a_missing_name_suggests_a_similar_one() -> None:
    assert instead("itms", ["items", "users"]) == "did you mean 'items'? There are items, users"
    assert instead("other", ["items", "users"]) == "there are items, users"
    assert instead("itms", ["items"]) == "did you mean 'items'?"
    assert instead("x", []) == "there are none"
    many = instead("x", (f"column {number}" for number in range(1000)))
    assert many.endswith("column 48, column 49 and 950 more")


@pytest.mark.parametrize(
    ("said", "told"), [(2.5, 2.5), (-1.0, 0.0), (float("nan"), 0.0), (float("inf"), 86_400.0)]
)
def test_when_to_come_back_is_a_time_whatever_a_model_says(said: float, told: float) -> None:
    assert errors.Overloaded("full", retry_after_seconds=said).retry_after_seconds == told


def test_alternatives_can_be_left_out_for_callers_who_may_not_know_them() -> None:
    told = NotFound("no space 'x'", others="did you mean 'y'? There are y, z")
    assert told.message == "no space 'x'; did you mean 'y'? There are y, z"
    assert told.without_others().message == "no space 'x'"
    assert (plain := NotFound("no; there is none")).without_others() is plain
