"""How many new keys a caller may have queued."""

from __future__ import annotations

from headrace.archive.lookup.miss_queue import Quota


def test_without_a_rate_there_is_no_limit() -> None:
    assert Quota(0, 1).take("anybody", 10**6, 0.0) == 10**6


def test_a_burst_then_the_rate() -> None:
    quota = Quota(10, 100)
    assert quota.take("ads", 150, 0.0) == 100
    assert quota.take("ads", 5, 0.0) == 0
    assert quota.take("ads", 50, 2.0) == 20
    assert quota.take("ads", 1000, 100.0) == 100  # never more than the burst


def test_callers_have_their_own() -> None:
    quota = Quota(10, 100)
    assert quota.take("ads", 100, 0.0) == 100
    assert quota.take("search", 100, 0.0) == 100


def test_callers_that_are_made_up_cost_bounded_memory() -> None:
    quota = Quota(10, 100)
    for number in range(30_000):
        quota.take(f"caller{number}", 1, float(number) / 1000)
    assert len(quota._buckets) <= 10_000
