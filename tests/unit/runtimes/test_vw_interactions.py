"""Which interactions a model of Vowpal Wabbit has."""

from __future__ import annotations

from headrace.runtimes.vw_interactions import count_expanded, expanded, in_order


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
