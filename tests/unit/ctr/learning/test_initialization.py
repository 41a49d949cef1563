"""Fresh weights depend on the seed and the row alone, and have the standard deviation that was asked for."""

from __future__ import annotations

import numpy as np

from headrace.ctr.learning.parameter_groups import draw
from headrace.ctr.models.interactions import Crossing


def test_a_row_is_the_same_in_any_table() -> None:
    """Rows do not depend on how many others are drawn, or in what order; the seed changes them."""
    whole, few, other = (np.zeros((100, 8), np.float32) for _ in range(3))
    draw(whole, np.arange(1, 100), 0.1, 3)
    draw(few[:, :8], np.array([50, 7]), 0.1, 3)
    draw(other, np.arange(1, 100), 0.1, 4)
    assert np.array_equal(few[[7, 50]], whole[[7, 50]])
    assert not few[8].any()
    assert not np.array_equal(other, whole)


def test_weights_are_bell_shaped() -> None:
    """Mean 0, the deviation asked for, next to no correlation of neighbours, the tails of a sum of four."""
    weights = np.zeros((20_001, 16), np.float32)
    draw(weights, np.arange(1, 20_001), 0.01, 0)
    drawn = weights[1:]
    assert abs(drawn.mean()) < 1e-4
    assert abs(drawn.std() - 0.01) < 1e-4
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.03
    assert 0.62 < np.mean(np.abs(drawn) < 0.01) < 0.72


def test_interactions_spread_evenly_and_leave_out_what_is_none() -> None:
    """Combinations of two fields fill their buckets evenly; a combination with no value is row 0."""
    pairs = Crossing(np.array([[0, 1]]), np.array([500], np.uint64), np.array([64], np.uint64))
    one, two = np.meshgrid(np.arange(1, 101), np.arange(101, 201))
    indices = np.stack([one.ravel(), two.ravel()], axis=1).astype(np.uint32)
    rows = pairs.of(indices)[:, 0]
    counts = np.bincount(rows - 500, minlength=64)
    assert len(counts) == 64
    assert counts.min() > 100
    assert counts.max() < 220
    indices[:3] = [[0, 5], [5, 0], [0, 0]]
    assert not pairs.of(indices)[:3].any()
