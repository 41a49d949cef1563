"""A mixture of Beta distributions over a click rate, the output of a mixture density network.

The network outputs 1 + 3 K numbers for a row, its heads. The first is a logit shared by all K components.
Then come the weights of all components (before the softmax), the offsets of all their logits, and the
logarithms of all their concentrations. With mean m and concentration s, a component is Beta(m s, (1 - m) s).
The likelihood of k clicks in n views is then a mixture of beta-binomials: Bishop, "Mixture density networks"
(1994), section 3, with these in place of Gaussians. Rates are between 0 and 1, and counts need no
approximation.

Everything is computed in float64, one row at a time: a row's result is bit-identical alone and in a batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import kernel, part

SCRATCH_COLUMNS = 6
"""Columns of the kernels' scratch array: float64 ``[components, SCRATCH_COLUMNS]``."""

_LEAST, _MOST = -3.0, 12.0  # of a concentration's logarithm: a rate is mostly 0 or 1; known to a thousandth
_FARTHEST_LOGIT = 30.0
_MULTIPLIED = 16  # number of factors above which gamma functions are faster than a product or sum
_SHIFTED = 10.0  # the series of digamma has twelve digits from here on
_CLOSE = 1e-8
_MOST_STEPS = 100
_MOST_FRACTIONS = 5000
_TINY = 1e-300


class Moments(NamedTuple):
    """Moments of mixtures: float64 ``[rows]`` each.

    Attributes:
        mean: Expected click rate.
        variance: Variance of the click rate.
    """

    mean: Array
    variance: Array


def heads_of(components: int) -> int:
    """Return the number of heads of a row."""
    return 1 + 3 * components


def scratch_of(components: int) -> Array:
    """Allocate the scratch array for one call of a kernel."""
    return np.empty((components, SCRATCH_COLUMNS))


def first_biases(components: int) -> Array:
    """Return the output layer's initial biases: spaced logit offsets, and concentrations of 8 views.

    Returns:
        float32 ``[heads]``.
    """
    made = np.zeros(heads_of(components), np.float32)
    if components > 1:
        made[1 + components : 1 + 2 * components] = np.linspace(-0.7, 0.7, components)
    made[1 + 2 * components :] = math.log(8.0)
    return made


# ---- Parts of kernels ----------------------------------------------------------------------------


@part()
def digamma(x: float) -> float:
    """Return the derivative of ln Γ at x > 0: the recurrence DLMF 5.5.2 upwards, then the series 5.11.2."""
    found = 0.0
    while x < _SHIFTED:
        found -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return found + math.log(x) - 0.5 / x - series


@part()
def log_rising(x: float, count: int) -> float:
    """Return ln Γ(x + count) - ln Γ(x)."""
    if count > _MULTIPLIED:
        return math.lgamma(x + count) - math.lgamma(x)
    product = 1.0
    for step in range(count):
        product *= x + step
    return math.log(product)


@part()
def slope_rising(x: float, count: int) -> float:
    """Return the derivative of ``log_rising`` with respect to x."""
    if count > _MULTIPLIED:
        return float(digamma(x + count) - digamma(x))
    total = 0.0
    for step in range(count):
        total += 1.0 / (x + step)
    return total


@part()
def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


@part()
def _cut(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


@part()
def _mix(heads: Array, row: int, scratch: Array) -> None:
    """Write each component's weight, mean, 1 - mean, and concentration to the scratch array."""
    components = scratch.shape[0]
    top = -np.inf
    for one in range(components):
        top = max(top, float(heads[row, 1 + one]))
    total = 0.0
    for one in range(components):
        scratch[one, 0] = math.exp(heads[row, 1 + one] - top)
        total += scratch[one, 0]
        logit = float(heads[row, 0]) + float(heads[row, 1 + components + one])
        logit = _cut(logit, -_FARTHEST_LOGIT, _FARTHEST_LOGIT)
        scratch[one, 1], scratch[one, 2] = _share(logit), _share(-logit)
        scratch[one, 3] = math.exp(_cut(heads[row, 1 + 2 * components + one], _LEAST, _MOST))
    for one in range(components):
        scratch[one, 0] /= total


@part()
def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete Beta function: DLMF 8.17.22, by Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, _MOST_FRACTIONS):
        for half in range(2):
            if half == 0:
                step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
            else:
                step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
            d, c = 1.0 + step * d, 1.0 + step / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            found *= d * c
        if abs(d * c - 1.0) < 1e-13:
            break
    return found


@part()
def _below(a: float, b: float, log_beta: float, x: float) -> float:
    """Return the distribution function of Beta(a, b) at x; ``log_beta`` is ln B(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta)
    if x < (a + 1.0) / (a + b + 2.0):
        return float(front * _beta_fraction(a, b, x) / a)
    return float(1.0 - front * _beta_fraction(b, a, 1.0 - x) / b)


@part()
def _quantile(scratch: Array, wanted: float, start: float) -> float:
    """Return a quantile of a mixture: Newton's method, with bisection where it would leave the bracket."""
    low, high, x = 0.0, 1.0, start
    for _ in range(_MOST_STEPS):
        below, density = -wanted, 0.0
        for one in range(scratch.shape[0]):
            a, b, log_beta = scratch[one, 3], scratch[one, 4], scratch[one, 5]
            below += scratch[one, 0] * _below(a, b, log_beta, x)
            exponent = (a - 1.0) * math.log(x) + (b - 1.0) * math.log1p(-x) - log_beta
            density += scratch[one, 0] * math.exp(min(exponent, 600.0))
        if below > 0.0:
            high = x
        else:
            low = x
        if high - low < _CLOSE:
            break
        following = x - below / density if density > 0.0 else -1.0
        if abs(following - x) < _CLOSE and low < following < high:
            return following
        x = following if low < following < high else 0.5 * (low + high)
    return 0.5 * (low + high)


# ---- Kernels -------------------------------------------------------------------------------------


@kernel()
def learn_heads(
    heads: Array, counts: tuple[Array, Array, Array], scratch: Array, gradients: Array, means: Array
) -> None:
    """Compute the gradient of the rows' negative log likelihood with respect to their heads.

    Args:
        heads: float32 ``[rows, heads]``.
        counts: Clicks, views, and weights of the rows (empty for 1 each): float32 ``[rows]`` each.
        scratch: Scratch array of ``scratch_of``.
        gradients: Output for the gradient: float32 ``[rows, heads]``.
        means: Output for the mean rates: float32 ``[rows]``.
    """
    clicks, views, weights = counts
    components = scratch.shape[0]
    for row in range(heads.shape[0]):
        k, n = int(clicks[row]), int(views[row])
        counted = float(weights[row]) if weights.shape[0] > 0 else 1.0
        _mix(heads, row, scratch)
        top, mean = -np.inf, 0.0
        for one in range(components):
            mean += scratch[one, 0] * scratch[one, 1]
            s = scratch[one, 3]
            fits = log_rising(scratch[one, 1] * s, k) + log_rising(scratch[one, 2] * s, n - k)
            scratch[one, 4] = fits - log_rising(s, n) + math.log(max(scratch[one, 0], _TINY))
            top = max(top, scratch[one, 4])
        means[row] = mean
        total = 0.0
        for one in range(components):
            scratch[one, 4] = math.exp(scratch[one, 4] - top)
            total += scratch[one, 4]
        shared = 0.0
        for one in range(components):
            weight, m, rest, s = scratch[one, 0], scratch[one, 1], scratch[one, 2], scratch[one, 3]
            blame = counted * scratch[one, 4] / total
            up, down = m * s * slope_rising(m * s, k), rest * s * slope_rising(rest * s, n - k)
            by_logit = blame * (m * down - rest * up)
            by_size = blame * (s * slope_rising(s, n) - up - down)
            size = heads[row, 1 + 2 * components + one]
            if (size >= _MOST and by_size < 0.0) or (size <= _LEAST and by_size > 0.0):
                by_size = 0.0
            gradients[row, 1 + one] = counted * weight - blame
            gradients[row, 1 + components + one] = by_logit
            gradients[row, 1 + 2 * components + one] = by_size
            shared += by_logit
        gradients[row, 0] = shared


@kernel()
def mean_logits(heads: Array, scratch: Array, logits: Array) -> None:
    """Compute the logits of the mean rates.

    Args:
        heads: float32 ``[rows, heads]``.
        scratch: Scratch array of ``scratch_of``.
        logits: Output for the logits: float32 ``[rows]``.
    """
    for row in range(heads.shape[0]):
        _mix(heads, row, scratch)
        mean, rest = 0.0, 0.0
        for one in range(scratch.shape[0]):
            mean += scratch[one, 0] * scratch[one, 1]
            rest += scratch[one, 0] * scratch[one, 2]
        logits[row] = math.log(mean / rest)


@kernel()
def _moments(heads: Array, scratch: Array, means: Array, variances: Array) -> None:
    for row in range(heads.shape[0]):
        _mix(heads, row, scratch)
        mean, variance = 0.0, 0.0
        for one in range(scratch.shape[0]):
            mean += scratch[one, 0] * scratch[one, 1]
        for one in range(scratch.shape[0]):
            m, rest, s = scratch[one, 1], scratch[one, 2], scratch[one, 3]
            variance += scratch[one, 0] * (m * rest / (1.0 + s) + (m - mean) * (m - mean))
        means[row], variances[row] = mean, variance


@kernel()
def _quantiles(heads: Array, shares: Array, scratch: Array, found: Array) -> None:
    for row in range(heads.shape[0]):
        _mix(heads, row, scratch)
        mean = 0.0
        for one in range(scratch.shape[0]):
            mean += scratch[one, 0] * scratch[one, 1]
        for one in range(scratch.shape[0]):
            s = scratch[one, 3]
            a, b = scratch[one, 1] * s, scratch[one, 2] * s
            scratch[one, 3], scratch[one, 4] = a, b
            scratch[one, 5] = math.lgamma(a) + math.lgamma(b) - math.lgamma(s)
        for column in range(shares.shape[1]):
            found[row, column] = _quantile(scratch, shares[row, column], _cut(mean, 1e-6, 1.0 - 1e-6))


# ---- Functions of heads --------------------------------------------------------------------------


def moments(heads: Array) -> Moments:
    """Return the means and variances of mixtures.

    Args:
        heads: float32 ``[rows, heads]``, C-contiguous; their number determines that of the components.
    """
    made = Moments(np.empty(len(heads)), np.empty(len(heads)))
    _moments(heads, scratch_of(components_of(heads)), *made)
    return made


def quantiles(heads: Array, shares: Array) -> Array:
    """Return quantiles of each row's mixture, accurate to 1e-7.

    Args:
        heads: float32 ``[rows, heads]``, C-contiguous.
        shares: Probabilities: float64 ``[rows, wanted]``, between 0 and 1, exclusive.

    Returns:
        float64 ``[rows, wanted]``.
    """
    found = np.empty(shares.shape)
    _quantiles(heads, np.ascontiguousarray(shares, np.float64), scratch_of(components_of(heads)), found)
    return found


def components_of(heads: Array) -> int:
    """Return the number of mixture components of heads ``[rows, heads]``."""
    return int(heads.shape[1] - 1) // 3
