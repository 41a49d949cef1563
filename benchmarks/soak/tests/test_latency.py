"""A p99 that grows is told from one that varies, and from faults."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak.latency import LEAST_SLOTS, SLOT_SECONDS, latency_trend, p99s
from benchmarks.soak.ledger import Ended, Outcome

SECONDS = 900
SPAN = (0.0, float(SECONDS))


def points(times: float, middle_ms: float = 200.0, seed: int = 0) -> list[tuple[float, float]]:
    """The p99 of slots that varies by a factor of ten, and grows by so many times its median."""
    chance = random.Random(seed)
    return [
        (at * SLOT_SECONDS, middle_ms * (1 + times * (at / 180 - 0.5)) * 10 ** chance.uniform(-0.5, 0.5))
        for at in range(180)
    ]


def test_each_slot_has_the_p99_of_a_servers_right_answers() -> None:
    plain, workers = ("plain", "OIP gRPC"), ("workers", "OIP gRPC")
    right = [Ended(plain, Outcome.RIGHT, 5.0 + at / 100, at / 1000) for at in range(101)]
    others = [
        Ended(plain, Outcome.REFUSED, 5.5, 9.0),
        Ended(workers, Outcome.RIGHT, 5.5, 9.0),
        Ended(plain, Outcome.RIGHT, 21.0, 0.25),
    ]
    assert p99s([*right, *others], "plain") == [(5.0, pytest.approx(99.0)), (20.0, pytest.approx(250.0))]
    assert p99s([], "plain") == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("times", "flat"), [(0.0, True), (-1.5, True), (1.8, False)])
def test_a_p99_that_more_than_doubles_is_not_flat(times: float, flat: bool, seed: int) -> None:
    found = latency_trend("plain", points(times, seed=seed), SPAN, [])
    assert found is not None
    assert found.what == "plain: p99"
    assert found.is_flat is flat


def test_a_small_p99_may_grow_by_50_ms() -> None:
    found = latency_trend("plain", points(1.8, middle_ms=10.0), SPAN, [])
    assert found is not None
    assert found.allowed == 50.0
    assert found.is_flat


def test_faults_and_what_lies_outside_are_not_judged() -> None:
    steady = [(at * SLOT_SECONDS, 10.0) for at in range(180)]
    faults = [(at, at + 1.5) for at in range(400, 800, 13)]
    felt = [
        (at, at if at >= 600 or any(a < at + SLOT_SECONDS and at < b for a, b in faults) else p99)
        for at, p99 in steady
    ]
    found = latency_trend("plain", felt, (0.0, 600.0), [(float(a), float(b)) for a, b in faults])
    assert found is not None
    assert found.slope == 0.0
    blind = latency_trend("plain", felt, SPAN, [])
    assert blind is not None
    assert not blind.is_flat


def test_few_slots_have_no_trend() -> None:
    steady = [(at * SLOT_SECONDS, 10.0) for at in range(LEAST_SLOTS)]
    assert latency_trend("plain", steady, SPAN, []) is not None
    assert latency_trend("plain", steady, SPAN, [(0.0, 1.0)]) is None
    assert latency_trend("plain", steady, (1.0, 900.0), []) is None
