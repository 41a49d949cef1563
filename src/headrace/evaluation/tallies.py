"""Sums and AUCs over groups of rows, from which scores are computed.

The code is compiled, because it runs for every row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached

LEAST_PROBABILITY = 1e-7
"""Predictions are clipped to this and to 1 minus this in metrics, so that every loss is finite."""

RUN_DETAIL = 11
"""Number of mantissa bits that select a probability's histogram bin, for all rows of a run. Near 0 and near 1
bins are proportionally narrower."""

_SUMS = 6
"""Number of sums: rows, weight, weight of clicks, weighted predictions, loss, loss of the truth."""
_MANTISSA_BITS = 23
_LEAST_EXPONENT = 127 - 24
_EXPONENTS = 24
_SMALL = 1e-200  # float64 can represent even this times LEAST_PROBABILITY
_NONE = np.zeros(0, np.float32)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the predictions of some rows; None where undefined, such as the AUC without clicks.

    Attributes:
        rows: Number of rows.
        logloss: Mean loss, in nats.
        auc: Probability that a row with a click was predicted higher than a row without one.
        auc_error: Bound on the error of the AUC; 0 if it is exact.
        calibration: Mean prediction divided by the mean label.
        normalized_entropy: The logloss divided by that of always predicting these rows' click rate.
        click_rate: Mean label.
        optimal_logloss: Logloss of the probabilities from which the labels were drawn.
    """

    rows: int
    logloss: float | None = None
    auc: float | None = None
    auc_error: float | None = None
    calibration: float | None = None
    normalized_entropy: float | None = None
    click_rate: float | None = None
    optimal_logloss: float | None = None


class Scored(NamedTuple):
    """Rows whose labels are known, and their predictions.

    Attributes:
        predictions: float32 ``[rows]``.
        labels: 0 or 1, or the number of clicks if there are views: float32 ``[rows]``.
        weights: float32 ``[rows]``; None for 1 each.
        truth: Probabilities from which generated labels were drawn: float32 ``[rows]``; None for real rows.
        codes: Code of each row's value in each slice's column: int32 ``[slices, rows]``; -1 for no value.
        views: Number of views of each row: float32 ``[rows]``; None for 1 each.
    """

    predictions: Array
    labels: Array
    weights: Array | None
    truth: Array | None
    codes: Array
    views: Array | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Array | None]) -> Scored:
        """Create rows from columns by name; weights, truth and views may be missing.

        Raises:
            ConfigError: Another column is missing.
        """
        predictions, labels, codes = (columns[name] for name in ("predictions", "labels", "codes"))
        if predictions is None or labels is None or codes is None:
            raise ConfigError("rows that are scored need predictions, labels and codes")
        weights, truth, views = (columns.get(name) for name in ("weights", "truth", "views"))
        return cls(predictions, labels, weights, truth, codes, views)

    def part(self, start: int, stop: int) -> Scored:
        """Return a range of the rows, as NumPy views."""
        found = {name: None if one is None else one[..., start:stop] for name, one in self._asdict().items()}
        return Scored.of(found)

    def chosen(self, there: Array) -> Scored:
        """Return the rows selected by a mask; this object itself if all are."""
        if there.all():
            return self
        found = {name: None if one is None else one[..., there] for name, one in self._asdict().items()}
        return Scored.of(found)

    def split_views(self) -> Scored:
        """Split each row with views in two: its clicks and its other views, weighted by their number."""
        if self.views is None:
            return self
        found = {
            name: None if one is None else np.concatenate([one, one], axis=-1)
            for name, one in self._asdict().items()
        }
        weights = np.concatenate([self.labels, self.views - self.labels])
        if self.weights is not None:
            weights *= np.tile(self.weights, 2)
        labels = np.repeat(np.array([1, 0], np.float32), len(self.labels))
        return Scored.of(found | {"labels": labels, "weights": weights, "views": None})


def exact_areas(predictions: Array, labels: Array, weights: Array | None, groups: Array, count: int) -> Array:
    """Return the AUC within each group of rows, ties counted half.

    Args:
        predictions: float32 ``[rows]``, none negative.
        labels: 0 or 1: float32 ``[rows]``.
        weights: float32 ``[rows]``; None for 1 each.
        groups: Group of each row: int64 ``[rows]``, 0 to ``count - 1``.
        count: Number of groups.

    Returns:
        float64 ``[count]``; NaN where a group has rows of one label only.
    """
    # Non-negative floats sort like their bit patterns, and the sign bit is free.
    bits = np.ascontiguousarray(predictions, dtype=np.float32).view(np.uint32)
    keys = (bits << np.uint32(1)) | (labels > 0.5)
    if count > 1 or weights is not None:
        keys = (groups.astype(np.uint64) << np.uint64(32)) | keys
    if weights is None:
        keys.sort()
        found = _areas(keys.astype(np.uint64), _NONE, count)
    else:
        order = np.argsort(keys)
        found = _areas(keys[order].astype(np.uint64), weights[order].astype(np.float32), count)
    return np.asarray(found)


class Tally:
    """Sums and histograms of rows, by group."""

    def __init__(self, groups: int, detail: int) -> None:
        """Start without rows.

        Args:
            groups: Number of groups.
            detail: Resolution of the histogram of probabilities, in mantissa bits.
        """
        self.sums = np.zeros((groups, _SUMS))
        self.histogram = np.zeros((groups, 2, 2 * _EXPONENTS << detail))
        self.with_truth = False
        self._detail = detail

    def merge(self, other: Tally) -> None:
        """Add the sums of another tally."""
        self.sums += other.sums
        self.histogram += other.histogram
        self.with_truth = self.with_truth or other.with_truth

    def copy(self) -> Tally:
        """Return an independent copy."""
        made = Tally(len(self.sums), self._detail)
        made.merge(self)
        return made

    def add(self, rows: Scored, groups: Array) -> None:
        """Add rows.

        Args:
            rows: The rows.
            groups: Group of each row: int64 ``[rows]``, none negative.
        """
        if rows.views is not None:
            self.add(rows.split_views(), np.tile(groups, 2))
            self.sums[:, 0] -= np.bincount(groups, minlength=len(self.sums))  # each row was counted twice
            return
        self.with_truth = self.with_truth or rows.truth is not None
        weights = _NONE if rows.weights is None else rows.weights
        truth = _NONE if rows.truth is None else rows.truth
        _add((rows.predictions, rows.labels, weights, truth, groups), self.sums, self.histogram, self._detail)

    def score(self, group: int, area: float | None = None) -> Score:
        """Return the score of a group's rows.

        Args:
            group: Number of the group.
            area: Exact AUC, NaN if undefined; None to use that of the histogram.
        """
        rows, weight, clicks, predicted, loss, optimal = (float(one) for one in self.sums[group])
        if weight <= 0.0:
            return Score(rows=int(rows))
        rate = min(clicks / weight, 1.0)
        entropy = -sum(share * math.log(share) for share in (rate, 1.0 - rate) if share > 0.0)
        error: float | None = 0.0
        if area is None:
            area, error = self._binned_area(group)
        known = math.isfinite(area)
        return Score(
            rows=int(rows),
            logloss=loss / weight,
            auc=area if known else None,
            auc_error=error if known else None,
            calibration=predicted / clicks if clicks > 0.0 else None,
            normalized_entropy=loss / weight / entropy if entropy > 0.0 else None,
            click_rate=rate,
            optimal_logloss=optimal / weight if self.with_truth else None,
        )

    def _binned_area(self, group: int) -> tuple[float, float]:
        """Return the AUC from the histogram, and the bound on its error."""
        down, up = self.histogram[group]
        pairs = float(down.sum() * up.sum())
        if pairs <= 0.0:
            return math.nan, math.nan
        tied = float(up @ down) / 2
        return (float(up @ (np.cumsum(down) - down)) + tied) / pairs, tied / pairs


@cached(nogil=True)
def _given(probability: float, clicked: bool) -> float:
    given = probability if clicked else 1.0 - probability
    return min(max(given, LEAST_PROBABILITY), 1.0 - LEAST_PROBABILITY)


@cached(nogil=True)
def _loss(probability: float, clicked: bool) -> float:
    return -math.log(_given(probability, clicked))


@cached(nogil=True)
def _losses(probabilities: Array, labels: Array) -> float:
    """Return the sum of all rows' losses, with one logarithm per product of probabilities, not per row."""
    total, product = 0.0, 1.0
    for row in range(len(labels)):
        product *= _given(float(probabilities[row]), labels[row] > 0.5)
        if product < _SMALL:
            total -= math.log(product)
            product = 1.0
    return total - math.log(product)


@cached(nogil=True)
def _add(columns: tuple[Array, ...], sums: Array, histogram: Array, detail: int) -> None:
    """Add rows, given as predictions, labels, weights (may be empty), truth (may be empty) and groups."""
    predictions, labels, weights, truth, groups = columns
    nearest = np.empty(len(predictions), np.float32)
    for row in range(len(predictions)):
        nearest[row] = min(predictions[row], np.float32(1.0) - predictions[row])
    bits = nearest.view(np.uint32)
    half = histogram.shape[2] // 2
    together = len(sums) == 1 and not len(weights)
    if together:
        sums[0, 4] += _losses(predictions, labels)
    for row in range(len(predictions)):
        weight = float(weights[row]) if len(weights) else 1.0
        clicked, group = labels[row] > 0.5, groups[row]
        sums[group, 0] += 1.0
        sums[group, 1] += weight
        sums[group, 2] += weight * clicked
        sums[group, 3] += weight * predictions[row]
        if not together:
            sums[group, 4] += weight * _loss(float(predictions[row]), clicked)
        if len(truth):
            sums[group, 5] += weight * _loss(float(truth[row]), clicked)
        place = (int(bits[row]) >> (_MANTISSA_BITS - detail)) - (_LEAST_EXPONENT << detail)
        place = min(max(place, 0), half - 1)
        if predictions[row] >= 0.5:
            place = 2 * half - 1 - place
        histogram[group, 1 if clicked else 0, place] += weight


@cached(nogil=True)
def _areas(keys: Array, weights: Array, count: int) -> Array:
    """Return the AUC of each group.

    Args:
        keys: Sorted keys of group, bits of the prediction, and label: uint64 ``[rows]``.
        weights: float32 ``[rows]`` in the same order; empty for 1 each.
        count: Number of groups.
    """
    area, up, down = np.zeros(count), np.zeros(count), np.zeros(count)
    row = 0
    while row < len(keys):
        group, tie = int(keys[row] >> np.uint64(32)), keys[row] >> np.uint64(1)
        ups, downs = 0.0, 0.0
        while row < len(keys) and keys[row] >> np.uint64(1) == tie:
            weight = float(weights[row]) if len(weights) else 1.0
            if keys[row] & np.uint64(1):
                ups += weight
            else:
                downs += weight
            row += 1
        area[group] += ups * (down[group] + downs / 2)
        up[group] += ups
        down[group] += downs
    for group in range(count):
        pairs = up[group] * down[group]
        area[group] = area[group] / pairs if pairs > 0.0 else np.nan
    return area
