"""Which calls are recorded: a truth table, and a limit that callers cannot lift."""

from __future__ import annotations

import pytest

from headrace.telemetry.tracing.tracer import ParentBased

IDS = (b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7")
YES = [(b"traceparent", b"00-%b-%b-01" % IDS)]
NO = [(b"traceparent", b"00-%b-%b-00" % IDS)]
BROKEN = [(b"traceparent", b"00-x")]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def sampler(
    rate: float = 1.0, most: int = 10, *, follows: bool = True, drawn: float = 0.5, now: Time | None = None
) -> ParentBased:
    return ParentBased(rate, most, follows_parent=follows, now=now or Time(), draw=lambda: drawn)


@pytest.mark.parametrize(
    ("headers", "rate", "follows", "is_recorded"),
    [
        ([], 1.0, True, True),
        ([], 0.6, True, True),
        ([], 0.4, True, False),
        ([], 0.0, True, False),
        (BROKEN, 0.4, True, False),
        (BROKEN, 0.6, True, True),
        (YES, 0.0, True, True),
        (NO, 1.0, True, False),
        (YES, 0.0, False, False),
        (NO, 1.0, False, True),
    ],
)
def test_the_callers_decision_applies_and_otherwise_the_sample_rate(
    headers: list[tuple[bytes, bytes]], rate: float, follows: bool, is_recorded: bool
) -> None:
    found = sampler(rate, follows=follows).sample(headers)
    assert (found is not None) == is_recorded
    if found is not None:
        assert (found.trace_id == IDS[0].decode()) == (headers in (YES, NO))
        assert found.is_recorded


def test_so_many_a_second_and_no_more() -> None:
    now = Time()
    found = sampler(most=10, now=now)
    assert sum(found.sample(YES) is not None for _ in range(50)) == 10
    assert found.over_limit == 40
    now.now = 0.55
    assert sum(found.sample(YES) is not None for _ in range(50)) == 5
    now.now = 1000.0
    assert sum(found.sample([]) is not None for _ in range(50)) == 10, "what was not used is not saved up"


def test_messages_of_a_recorded_stream_are_within_the_same_limit() -> None:
    found = sampler(most=4)
    stream = found.sample(YES)
    assert stream is not None
    children = [found.child(stream) for _ in range(10)]
    assert [child is not None for child in children] == [True] * 3 + [False] * 7
    assert found.over_limit == 7
