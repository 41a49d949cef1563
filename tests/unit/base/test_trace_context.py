"""W3C Trace Context: what is one, what is none, and what a call's own is made of."""

from __future__ import annotations

import re

import pytest

from headrace.base.trace_context import TraceContext, noted, parent_in, parse_parent, state_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (GOOD, 1),
        (GOOD[:-1] + b"0", 0),
        (f"00-{TRACE}-{SPAN}-03".encode(), 3),
        (f"01-{TRACE}-{SPAN}-01-and-more".encode(), 1),
        (f"cc-{TRACE}-{SPAN}-01-".encode(), 1),
    ],
)
def test_a_traceparent_is_read(value: bytes, flags: int) -> None:
    parent = parse_parent(value)
    assert parent == (TRACE, SPAN, flags)
    assert parent is not None
    assert parent.is_sampled == bool(flags & 1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        GOOD[:-1],
        GOOD + b"-more",
        GOOD + b" ",
        b"ff" + GOOD[2:],
        GOOD.upper(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"01-{TRACE}-{SPAN}-01.more".encode(),
        b"00-" + b"x" * 100_000,
        GOOD.replace(b"-", b"_"),
        b"\xff" * 55,
    ],
)
def test_an_invalid_traceparent_is_ignored(value: bytes) -> None:
    assert parse_parent(value) is None


def test_two_are_none() -> None:
    assert parent_in([(b"traceparent", GOOD)]) is not None
    assert parent_in([(b"traceparent", GOOD), (b"traceparent", GOOD)]) is None
    assert parent_in([(b"other", GOOD)]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ([b"a=1", b" b=2 ,, c=3"], "a=1,b=2,c=3"),
        ([b"1tenant@system=x"], "1tenant@system=x"),
        ([], ""),
        ([b"A=1"], ""),
        ([b"a=1,a=2"], ""),
        ([b"a=1\nb"], ""),
        ([b"a=" + b"x" * 600], ""),
        ([b",".join(b"k%d=1" % index for index in range(33))], ""),
    ],
)
def test_tracestate_is_carried_unchanged_or_not_at_all(values: list[bytes], expected: str) -> None:
    assert state_in([(b"tracestate", value) for value in values]) == expected


def test_a_call_below_a_caller_has_a_span_of_its_own_in_the_same_trace() -> None:
    made = TraceContext(parse_parent(GOOD), "a=1", is_recorded=True)
    assert (made.trace_id, made.parent_id, made.flags, made.is_remote) == (TRACE, SPAN, 1, True)
    assert re.fullmatch("[0-9a-f]{16}", made.span_id)
    assert made.span_id != SPAN
    below = made.child()
    assert (below.trace_id, below.parent_id, below.is_remote) == (TRACE, made.span_id, False)


def test_a_trace_that_begins_here_has_no_parent() -> None:
    one, other = TraceContext(None, is_recorded=True), TraceContext(None, is_recorded=True)
    assert re.fullmatch("[0-9a-f]{32}", one.trace_id)
    assert (one.parent_id, one.flags, one.is_remote) == ("", 1, False)
    assert one.trace_id != other.trace_id


def test_a_call_that_is_not_recorded_names_its_callers_span() -> None:
    seen = noted([(b"traceparent", GOOD)])
    assert seen is not None
    assert (seen.trace_id, seen.span_id, seen.is_recorded) == (TRACE, SPAN, False)
    assert noted([]) is None
