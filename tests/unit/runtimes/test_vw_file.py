"""Dumps of Vowpal Wabbit: their parts, the options that are refused, damage."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import NotLoadable
from headrace.runtimes import vw_file
from headrace.runtimes.vw_file import ANY, Dump, Packed, count_expanded, in_order, read
from tests.conformance.vw_models import dump, known

HEAD = (
    b"Version 9.11.9\nId \nMin label:-1\nMax label:1\nbits:%d\nlda:0\n0 ngram:\n0 skip:\n"
    b"options:%s\nChecksum: 1\n"
)
STATE = b"initial_t 0\nnorm normalizer 2.5\nt 6\nmin_label -1\nmax_label 1\nl1_state %s\nl2_state %s\n"


def made(options: bytes = b"", body: bytes = b":0\n5:0.5\n", bits: int = 4) -> Dump:
    return read(HEAD % (bits, options) + body)


def test_the_parts_of_a_dump() -> None:
    of = made(b" --quadratic ui --interactions abc --noconstant --link logistic --hash all --hash_seed 7")
    assert (of.bits, of.interactions, of.constant) == (4, (b"ui", b"abc"), False)
    assert (of.link, of.hash_all, of.hash_seed, of.labels) == ("logistic", True, 7, (-1.0, 1.0))
    assert of.weights.tolist() == [0.0] * 5 + [0.5] + [0.0] * 10
    assert of.keys.tolist() == []
    usual = made()
    assert (usual.interactions, usual.constant, usual.link) == ((), True, "identity")
    assert (usual.hash_all, usual.hash_seed) == (False, 0)


def test_namespaces_that_are_left_out() -> None:
    of = made(b" --ignore ab --ignore_linear c")
    assert (np.flatnonzero(of.ignored).tolist(), np.flatnonzero(of.not_linear).tolist()) == ([97, 98], [99])
    kept = made(b" --ignore ab --keep xy")
    assert np.flatnonzero(~kept.ignored).tolist() == [120, 121]


def test_namespaces_may_be_in_hexadecimal() -> None:
    assert made(rb" --quadratic \x20u --interactions a\xe9b").interactions == (b" u", b"a\xe9b")


def test_weights_of_a_model_that_can_learn_further() -> None:
    of = made(body=b":1\n" + STATE % (b"0", b"1") + b"3:-0.25 4.5 inf\n5:1e-05 2 3\n7:0x1.8p-1 0x1p+2 1\n")
    assert of.weights[[3, 5, 7]].tolist() == [-0.25, float(np.float32(1e-5)), 0.75]


def test_regularization_is_applied_as_by_vw_when_it_loads_a_model() -> None:
    of = made(body=b":1\n" + STATE % (b"0.25", b"0.5") + b"1:0.125 1 1\n2:0.75 1 1\n3:-0.75 1 1\n")
    assert of.weights[[1, 2, 3]].tolist() == [0.0, 0.25, -0.25]


def test_weights_with_names_are_read_as_those_without() -> None:
    of = made(body=b":1\n" + STATE % (b"0", b"1") + b"Constant:3:0.5 1 1\na^b:c*d:9:7:0.75 31 1\nt:8:2 3 1\n")
    assert of.weights[[3, 7, 8]].tolist() == [0.5, 0.75, 2.0]


def test_few_of_very_many_weights_are_stored_by_their_keys() -> None:
    of = made(body=b":0\n900000000:0.5\n7:0.25\n", bits=30)
    assert (of.keys.tolist(), of.weights.tolist()) == ([7, 900000000], [0.25, 0.5])
    none = made(body=b":0\n", bits=32)
    assert none.weights.tolist() == [0.0]
    assert len(made(body=b":0\n", bits=20).weights) == 1 << 20


@pytest.mark.parametrize("options", known()["refused"])
def test_an_option_that_is_not_supported_is_named(options: str) -> None:
    expected = {"--skips": "--ngram", "--cb_explore": "--cb_adf"}
    name, *_ = options.split()
    with pytest.raises(NotLoadable, match=f"VW's option {expected.get(name, name)}, which is not supported"):
        read(known()["refused"][options].encode("latin-1"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (b" --hash other", r"--hash 'other', which is not supported; strings, all are"),
        (b" --link cube", r"--link 'cube', which is not supported; identity, logistic, glf1, poisson are"),
        (b" --unheard_of", "--unheard_of, which is not supported; linear models are, with --cubic, --hash"),
    ],
)
def test_a_value_that_is_not_supported_is_named(options: bytes, said: str) -> None:
    with pytest.raises(NotLoadable, match=said):
        made(options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "does not begin with 'Version'"),
        (b"vw\n", "does not begin with 'Version'"),
        (b"Version 9", "its end is missing"),
        (b"Version 9\n", "'Checksum', is missing"),
        (HEAD % (4, b""), "':0' or ':1'"),
        (HEAD.replace(b"bits:%d\n", b"") % b"" + b":0\n", "'bits' of the header is missing"),
        (HEAD % (33, b"") + b":0\n", "bits: expected a number from 1 to 32, got b'33'"),
        (HEAD % (0, b"") + b":0\n", "bits: expected a number from 1 to 32"),
        ((HEAD % (4, b"")).replace(b"label:1", b"label:-2") + b":0\n", "Min label -1.0 is above"),
        ((HEAD % (4, b"")).replace(b"label:1", b"label:x") + b":0\n", "expected a number, got 'x'"),
        (HEAD % (4, b" quadratic ui") + b":0\n", "b'quadratic', which is no option"),
        (HEAD % (4, b" --quadratic") + b":0\n", "--quadratic has no value"),
        (HEAD % (4, b" --quadratic uic") + b":0\n", "--quadratic b'uic' has 3 namespaces"),
        (HEAD % (4, b" --interactions " + b"a" * 40) + b":0\n", "has 40 namespaces"),
        (HEAD % (4, b" --hash_seed -1") + b":0\n", "--hash_seed: expected a number"),
        (HEAD % (4, b"") + b":0\n5:0.5\n\n6:1\n", "line 13: expected 'index:weight', got b''"),
        (HEAD % (4, b"") + b":0\n5:x\n", "line 12: expected 'index:weight', got b'5:x'"),
        (HEAD % (4, b"") + b":0\n5:1.2.3\n", r"expected a number, got '1\.2\.3'"),
        (HEAD % (4, b"") + b":0\n5:nan\n", "line 12: the weight is not finite: training has diverged"),
        (HEAD % (4, b"") + b":0\n5:-inf\n", "line 12: the weight is not finite"),
        (HEAD % (4, b"") + b":0\n5:1e300\n", "too large for float32"),
        (HEAD % (4, b"") + b":0\n16:1\n", "the index 16, and 4 bits"),
        (HEAD % (4, b"") + b":0\n5:1\n5:2\n", "an index has two weights"),
    ],
)
def test_a_damaged_dump_is_refused_with_the_reason(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


def test_every_cut_and_every_changed_byte_is_refused_or_read() -> None:
    text = HEAD % (4, b" --quadratic ui --hash all") + b":1\n" + STATE % (b"0", b"1") + b"3:0.5 1 1\n"
    read(text)
    refused = 0
    for place in range(len(text)):
        changed = [text[:place] + bytes([byte]) + text[place + 1 :] for byte in b"\0\n 9:-z\xff"]
        for damaged in (text[:place], *changed):
            try:
                read(damaged)
            except (ValueError, NotLoadable):
                refused += 1
    assert refused > len(text)


def test_a_real_dump_that_is_cut_is_refused_or_read() -> None:
    text = dump("pairs")
    for place in range(0, len(text), 97):
        with contextlib.suppress(ValueError):
            read(text[:place])


LARGE = HEAD % (20, b"") + b":0\n" + b"".join(b"%d:%s\n" % (i, (i / 8).hex().encode()) for i in range(20_000))


def test_a_large_dump_is_read_in_parts_so_that_other_threads_run_in_between() -> None:
    """The regular expressions hold the GIL for as long as one call takes."""
    calls = 0

    def profile(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        calls += event == "c_call" and called.__name__ == "findall"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        of = read(LARGE)
    finally:
        sys.setprofile(before)
    assert calls > len(LARGE) // 2**16 > 3
    assert of.weights[:20_001].tolist() == [*(np.arange(20_000) / 8).tolist(), 0.0]


def test_damage_in_a_large_dump_is_found_in_its_line() -> None:
    end = LARGE.count(b"\n") + 1
    with pytest.raises(ValueError, match=f"line {end}: expected 'index:weight', got b'7:x'"):
        read(LARGE + b"7:x\n")
    with pytest.raises(
        ValueError, match=rf"line {end}: expected 'index:weight', got b'aaa.*\(65536 in all\)"
    ):
        read(LARGE + b"a" * 70_000 + b":7:0.5\n")
    text = LARGE.replace(b"\n9000:", b"\n9000;", 1)
    number = text[: text.index(b"9000;")].count(b"\n") + 1
    with pytest.raises(ValueError, match=f"line {number}: expected 'index:weight', got b'9000;"):
        read(text)


def test_line_ends_of_other_systems_do_not_end_a_line() -> None:
    of = made(body=b":1\n" + STATE % (b"0", b"1") + b"a\x85\x0b\r:3:0.5 1 1\n")
    assert of.weights[3] == 0.5


def expanded(interactions: Iterable[bytes], namespaces: Iterable[int]) -> tuple[bytes, ...]:
    """The interactions as texts, from how they are packed."""
    terms, ends = Packed.of(vw_file.expanded(interactions, namespaces))
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
        vw_file.expanded([b"::", b"a:"], namespaces)
    finally:
        sys.settrace(before)
    return count


def test_many_interactions_take_python_no_longer_than_few() -> None:
    """A caller can send other namespaces in each row, and the GIL would be held for seconds."""
    assert lines_run(bytes(range(ord("A"), ord("Z")))) < lines_run(b"AB") + 200
