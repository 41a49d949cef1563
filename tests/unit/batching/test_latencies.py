"""Latencies are counted exactly at the objective; a quantile of the counts is nearly the true one."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest

from headrace.batching.latencies import BOUNDS_SECONDS, Latencies, quantile
from headrace.batching.statistics import ObjectiveCounts, VersionStatistics

RANDOM = np.random.default_rng(7)
DISTRIBUTIONS = {
    "all the same, just above a bound": np.full(1000, BOUNDS_SECONDS[80] * 1.0001),
    "all the same, at a bound": np.full(1000, BOUNDS_SECONDS[80]),
    "exponential": RANDOM.exponential(0.004, 20_000),
    "lognormal": RANDOM.lognormal(math.log(0.003), 0.7, 20_000),
    "uniform": RANDOM.uniform(0.001, 0.050, 20_000),
    "Pareto": 0.002 * (1 + RANDOM.pareto(1.5, 20_000)),
    "one in fifty is slow": np.where(RANDOM.random(20_000) < 0.02, 0.9, 0.0007),
    "microseconds": RANDOM.lognormal(math.log(30e-6), 0.3, 20_000),
}
by_distribution = pytest.mark.parametrize("latencies", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())


def counted(seconds: np.ndarray, objective: float = 0.0) -> Latencies:
    latencies = Latencies(objective)
    for one in seconds.tolist():
        latencies.add(one)
    return latencies


@by_distribution
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_a_quantile_is_within_ten_percent_of_the_true_one(latencies: np.ndarray, share: float) -> None:
    true = float(np.quantile(latencies, share, method="inverted_cdf"))
    assert quantile(counted(latencies).by_bound(), share) == pytest.approx(true, rel=0.095)


def test_of_nothing_there_is_no_quantile() -> None:
    assert math.isnan(quantile(Latencies().by_bound(), 0.99))


def test_what_is_beyond_all_bounds_is_said_to_be_at_the_last() -> None:
    assert quantile(counted(np.array([1000.0])).by_bound(), 0.99) == BOUNDS_SECONDS[-1]


@by_distribution
@pytest.mark.parametrize("objective", [0.0, 0.003, BOUNDS_SECONDS[80], 1e-7, 1e5])
def test_the_objective_is_counted_exactly_and_changes_no_other_count(
    latencies: np.ndarray, objective: float
) -> None:
    with_objective = counted(latencies, objective)
    assert with_objective.within_objective == (np.sum(latencies <= objective) if objective else 0)
    assert with_objective.by_bound() == counted(latencies).by_bound()


@pytest.mark.parametrize("spread", [0.0, 1e-5, 1e-3, 0.1, 10.0])
@pytest.mark.parametrize("requests", [1, 2, 7, 300])
def test_requests_of_a_batch_are_counted_as_if_they_were_alone(spread: float, requests: int) -> None:
    now = 1000.0
    arrivals = (now - 0.002 - RANDOM.random(requests) * spread).tolist()
    together, alone = Latencies(0.005), Latencies(0.005)
    for arrived in arrivals:
        alone.counts[bisect_left(alone.bounds, now - arrived)] += 1
    together.add_arrivals(arrivals, now)
    assert together.counts == alone.counts


def test_totals_of_versions_with_different_objectives_add_up() -> None:
    total = VersionStatistics()
    for objective in (0.0, 0.001, 0.1):
        part = VersionStatistics(objective)
        part.latencies = counted(np.array([0.01, 0.02, 0.0001]), objective)
        part.requests, part.failures, part.refused = 3, 2, 1
        total.add(part)
    assert total.objective == ObjectiveCounts(kept=1 + 3, late=2, failed=4, refused=2)
    assert sum(total.latencies.by_bound()) == 9
    again = VersionStatistics()
    again.add(total)
    assert again.objective == total.objective


def test_without_an_objective_there_is_nothing_to_keep() -> None:
    assert VersionStatistics().objective is None
    assert VersionStatistics(0.1).objective == ObjectiveCounts()
