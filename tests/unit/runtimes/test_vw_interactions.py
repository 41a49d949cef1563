"""Which interactions a model of Vowpal Wabbit has."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest

from headrace.runtimes import vw_interactions
from headrace.runtimes.vw_interactions import ANY, Packed, count_expanded, in_order


def expanded(interactions: Iterable[bytes], namespaces: Iterable[int]) -> tuple[bytes, ...]:
    """The interactions as texts, from how they are packed."""
    terms, ends = Packed.of(vw_interactions.expanded(interactions, namespaces))
    starts = [0, *ends.tolist()]
    return tuple(terms[start:end].tobytes() for start, end in itertools.pairwise(starts))


def one_by_one(interactions: Iterable[bytes], there: bytes) -> tuple[bytes, ...]:
    """The interactions by VW's rules, as ``interactions.h`` makes them: one after the other."""
    made = []
    for one in interactions:
        wildcards = one.count(ANY)
        for chosen in itertools.combinations_with_replacement(sorted(there), wildcards):
            filling = iter(chosen if wildcards == 2 else chosen[::-1])
            made.append(bytes(next(filling) if term == ANY else term for term in one))
    return in_order(made)


def test_of_the_same_namespaces_one_interaction_is_kept() -> None:
    assert in_order([b"ui", b"iu", b"ui"]) == (b"iu",)
    assert in_order([b"cba", b"ba", b"bac"]) == (b"ba", b"bac")


def test_one_that_repeats_a_namespace_beside_others_is_sorted() -> None:
    assert in_order([b"bab", b"bb", b"cab"]) == (b"bb", b"abb", b"cab")


def test_wildcards_stand_for_the_namespaces_of_an_example() -> None:
    assert expanded([b"::"], b"ba") == (b"aa", b"ab", b"bb")
    assert expanded([b"c:"], b"ab") == (b"ca", b"cb")
    assert expanded([b":::"], b"ab") == (b"aaa", b"aab", b"abb", b"bbb")
    assert b"cba" in expanded([b":::"], b"abc")
    assert expanded([b"ab", b"::"], b"ab") == (b"aa", b"ab", b"bb")


def test_wildcards_stand_for_printable_namespaces_only() -> None:
    """The constant is in another."""
    assert expanded([b"::"], b"a\x80\xc3") == (b"aa",)
    assert expanded([b"::"], b"") == ()


def test_interactions_are_counted_before_they_are_made() -> None:
    for interactions, there in (([b"::"], b"abcd"), ([b":::", b"a:"], b"abc"), ([b"ab"], b"ab")):
        assert count_expanded(interactions, len(there)) >= len(expanded(interactions, there))
    assert count_expanded([b"::"], 95) == 95 * 96 // 2


@pytest.mark.parametrize(
    "interactions",
    [
        (b"::",),
        (b":::", b"::"),
        (b"a:", b"::", b"ba", b":a"),
        (b":a:", b"::a", b"aab", b":::", b"abc", b"cab"),
        (b"\x00:", b"\xff:", b":\x00", b"::"),
        (b"::::", b":b:b"),
    ],
)
@pytest.mark.parametrize("there", [b"", b"a", b"ba", b"xcAb", b"abcdefgh"])
def test_all_at_once_are_those_made_one_by_one(interactions: tuple[bytes, ...], there: bytes) -> None:
    assert expanded(in_order(interactions), there) == one_by_one(in_order(interactions), there)


def lines_run(namespaces: bytes) -> int:
    """Return how many lines of Python make the interactions of some namespaces."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        vw_interactions.expanded([b"::", b"a:"], namespaces)
    finally:
        sys.settrace(before)
    return count


def test_many_interactions_take_python_no_longer_than_few() -> None:
    """A caller can send other namespaces in each row, and Python's lock would be held for seconds."""
    assert lines_run(bytes(range(ord("A"), ord("Z")))) < lines_run(b"AB") + 200
