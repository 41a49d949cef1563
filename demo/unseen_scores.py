"""How good answers about items were: means by logloss and AUC, intervals by coverage and interval score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from demo.unseen_data import Items
from headrace.base.tensors import Array

LEVELS = (0.8, 0.95)
"""How sure intervals are to be."""


class Answers(NamedTuple):
    """What was said of items.

    Attributes:
        mean: The click rate to be expected: float64 ``[items]``.
        intervals: By level, where each item's interval begins and ends: float64 ``[items]`` each.
    """

    mean: Array
    intervals: dict[float, tuple[Array, Array]]

    def chosen(self, which: Array) -> Answers:
        """Those about some items."""
        intervals = {level: (low[which], high[which]) for level, (low, high) in self.intervals.items()}
        return Answers(self.mean[which], intervals)


class Scores(NamedTuple):
    """How good they were.

    Attributes:
        logloss: The mean over all views.
        auc: The probability that a click was given more than a view that was none.
        coverage: By level, the share of items whose rate lay in their interval; empty where none is known.
        interval_score: By level, the mean interval score: lower is better.
    """

    logloss: float
    auc: float
    coverage: dict[float, float]
    interval_score: dict[float, float]


def scores(answers: Answers, items: Items) -> Scores:
    """Score answers about items."""
    p, k, n = np.clip(answers.mean, 1e-7, 1 - 1e-7), items.clicks, items.views
    logloss = -float(k @ np.log(p) + (n - k) @ np.log1p(-p)) / float(n.sum())
    coverage, score = {}, {}
    if items.rates is not None:
        for level, (low, high) in answers.intervals.items():
            coverage[level] = float(np.mean((low <= items.rates) & (items.rates <= high)))
            score[level] = interval_score(low, high, items.rates, 1 - level)
    return Scores(logloss, area(p, k, n), coverage, score)


def interval_score(low: Array, high: Array, came: Array, alpha: float) -> float:
    """Gneiting and Raftery, "Strictly proper scoring rules" (2007), equation 43: the width, and misses."""
    outside = np.maximum(low - came, 0) + np.maximum(came - high, 0)
    return float(np.mean(high - low + 2 / alpha * outside))


def area(p: Array, clicks: Array, views: Array) -> float:
    """The AUC of views; ties count half."""
    values, groups = np.unique(p, return_inverse=True)
    up = np.bincount(groups, clicks, len(values))
    down = np.bincount(groups, views - clicks, len(values))
    below = np.cumsum(down) - down
    return float(up @ (below + down / 2) / (up.sum() * down.sum()))
