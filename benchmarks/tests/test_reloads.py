"""A thousand versions of a model come and go under requests: a server stays as it was."""

from __future__ import annotations

import pytest

from benchmarks.reloads import (
    MOST_GROWTH_BYTES,
    MOST_P99,
    MOST_SLOPE_BYTES,
    RELOADS,
    Held,
    measured,
    p99_ms,
    slope_bytes,
)


@pytest.mark.timing
def test_a_thousand_reloads_leave_memory_descriptors_threads_and_p99_as_they_were() -> None:
    found = measured()
    assert found.count == RELOADS, "it took too long for all of them"
    assert not found.failed, found.failed[:3]
    assert found.growth_bytes <= MOST_GROWTH_BYTES
    assert found.slope_bytes <= MOST_SLOPE_BYTES
    assert found.more_descriptors <= 0
    assert found.more_threads <= 0
    assert found.p99_ratio <= MOST_P99


def held(rss_bytes: list[int]) -> list[Held]:
    """What was held after reloads a second apart."""
    return [Held(float(at), one, 30, 20) for at, one in enumerate(rss_bytes)]


def test_the_slope_of_memory_is_by_the_reload_and_ignores_what_sticks_out() -> None:
    saw = [3_000_000 * (number % 5) for number in range(500)]
    assert abs(slope_bytes(held([100_000_000 + one for one in saw]))) < MOST_SLOPE_BYTES / 10
    leaking = [100_000_000 + 2 * MOST_SLOPE_BYTES * number + one for number, one in enumerate(saw)]
    assert slope_bytes(held(leaking)) == pytest.approx(2 * MOST_SLOPE_BYTES, rel=0.1)


def test_each_p99_is_of_the_requests_during_its_reloads() -> None:
    asked = [(-1.0, 9.0), *((at / 10, 0.002 if at < 240 else 0.004) for at in range(490)), (80.0, 9.0)]
    assert p99_ms(held([0] * 60), asked) == [(25, pytest.approx(2.0)), (50, pytest.approx(4.0))]
    assert p99_ms(held([0] * 10), asked) == []
