"""How long anybody waits for a store, and when nobody does."""

from __future__ import annotations

from headrace.archive.lookup.background_reads import OPENS_AFTER, Breaker


def steady(seconds: float, reads: int = 1000) -> Breaker:
    breaker = Breaker(5.0)
    for number in range(reads):
        breaker.answered(seconds * (1 + number % 10 / 100))
    return breaker


def test_the_breaker_starts_with_the_longest_patience() -> None:
    assert Breaker(5.0).patience_seconds == 5.0


def test_patience_is_one_and_a_half_times_what_reads_usually_take() -> None:
    assert 0.0030 < steady(0.002).patience_seconds < 0.0034


def test_patience_is_never_below_a_millisecond_nor_above_the_limit() -> None:
    assert steady(0.00001).patience_seconds == 0.001
    assert steady(9.0).patience_seconds == 5.0


def test_the_breaker_opens_after_consecutive_failures_and_a_probe_closes_it() -> None:
    breaker = steady(0.002)
    for _ in range(OPENS_AFTER):
        assert not breaker.is_open
        breaker.troubled()
    assert breaker.is_open
    breaker.close()
    assert not breaker.is_open
    breaker.troubled()
    assert not breaker.is_open


def test_a_timely_read_resets_the_failure_count() -> None:
    breaker = steady(0.002)
    for _ in range(20):
        breaker.troubled()
        breaker.answered(0.002)
    assert not breaker.is_open


def test_a_late_read_does_not_reset_the_failure_count() -> None:
    breaker = steady(0.002)
    for _ in range(OPENS_AFTER):
        breaker.troubled()
        breaker.answered(1.0)
    assert breaker.is_open
