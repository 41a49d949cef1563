"""The mixture's gradient is that of its likelihood, its quantiles invert its distribution, for any counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from headrace.base.tensors import Array
from headrace.ctr.models.density import (
    components_of,
    first_biases,
    heads_of,
    learn_heads,
    mean_logits,
    moments,
    quantiles,
    scratch_of,
)

NONE = np.zeros(0, np.float32)
COUNTS = [(0, 1), (1, 1), (0, 0), (3, 10), (0, 40), (40, 40), (17, 300), (12_000, 1_000_000)]


def heads_for(rows: int, components: int = 3, seed: int = 0, spread: float = 1.5) -> Array:
    drawn = np.random.default_rng(seed).normal(size=(rows, heads_of(components))) * spread
    drawn[:, 1 + 2 * components :] += 2
    return drawn.astype(np.float32)


def parts(heads: Array) -> tuple[Any, Any, Any]:
    """Weights, alphas and betas: float64 ``[rows, components]``, by SciPy."""
    count, wide = components_of(heads), heads.astype(np.float64)
    weights = special.softmax(wide[:, 1 : 1 + count], axis=1)
    means = special.expit(wide[:, :1] + wide[:, 1 + count : 1 + 2 * count])
    sizes = np.exp(np.clip(wide[:, 1 + 2 * count :], -3, 12))
    return weights, means * sizes, (1 - means) * sizes


def likelihoods(heads: Array, clicks: int, views: int) -> Any:
    """Logarithms of mixtures of beta-binomials: float64 ``[rows]``, by SciPy."""
    weights, alphas, betas = parts(heads)
    fits = stats.betabinom.logpmf(clicks, views, alphas, betas)
    return special.logsumexp(fits, b=weights, axis=1)


@pytest.mark.parametrize("components", [1, 3, 5])
@pytest.mark.parametrize(("clicks", "views"), COUNTS)
def test_the_gradient_is_that_of_beta_binomials(clicks: int, views: int, components: int) -> None:
    """Against differences, in steps that float32 tells exactly."""
    heads = np.round(heads_for(30, components, seed=views % 7) * 256).astype(np.float32) / 256
    k, n = np.full(30, clicks, np.float32), np.full(30, views, np.float32)
    weights = np.linspace(0.5, 2, 30).astype(np.float32)
    gradients, means = np.empty_like(heads), np.empty(30, np.float32)
    learn_heads(heads, (k, n, weights), scratch_of(components), gradients, means)
    step = np.float32(2.0**-12)
    for column in range(heads.shape[1]):
        up, down = heads.copy(), heads.copy()
        up[:, column] += step
        down[:, column] -= step
        more, less = likelihoods(up, clicks, views), likelihoods(down, clicks, views)
        wanted = -weights * (more - less) / (2 * float(step))
        np.testing.assert_allclose(gradients[:, column], wanted, rtol=2e-3, atol=2e-5 * max(1, views**0.5))
    np.testing.assert_allclose(means, moments(heads).mean, rtol=1e-6)


def test_one_view_gives_no_gradient_of_the_concentration_and_no_view_none_at_all() -> None:
    heads = heads_for(10, components=1)
    gradients, means = np.empty_like(heads), np.empty(10, np.float32)
    for views in (1, 0):
        k, n = np.zeros(10, np.float32), np.full(10, views, np.float32)
        learn_heads(heads, (k, n, NONE), scratch_of(1), gradients, means)
        np.testing.assert_allclose(gradients[:, 3], 0, atol=1e-7)
        assert gradients[:, 0].any() == (views == 1)


def test_extreme_heads_have_finite_gradients_towards_the_data() -> None:
    heads = np.zeros((4, heads_of(2)), np.float32)
    heads[0, 0], heads[1, 0] = 1e6, -1e6
    heads[2, 5:], heads[3, 5:] = 1e6, -1e6
    k, n = np.array([0, 50, 5, 25], np.float32), np.full(4, 50, np.float32)
    gradients, means = np.empty_like(heads), np.empty(4, np.float32)
    learn_heads(heads, (k, n, NONE), scratch_of(2), gradients, means)
    assert np.isfinite(gradients).all()
    assert gradients[0, 0] > 0 > gradients[1, 0]
    assert (gradients[2, 5:] > 0).all()
    assert (gradients[3, 5:] < 0).all()
    assert np.isfinite(quantiles(heads, np.full((4, 1), 0.5))).all()
    assert (moments(heads).variance >= 0).all()


def test_moments_are_those_of_the_mixture() -> None:
    heads = heads_for(50)
    weights, alphas, betas = parts(heads)
    means, variances = stats.beta.mean(alphas, betas), stats.beta.var(alphas, betas)
    mean = (weights * means).sum(axis=1)
    variance = (weights * (variances + means**2)).sum(axis=1) - mean**2
    found = moments(heads)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5, atol=1e-12)
    logits = np.empty(50, np.float32)
    mean_logits(heads, scratch_of(3), logits)
    np.testing.assert_allclose(logits, special.logit(mean), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 1.5, 4.0])
def test_quantiles_invert_the_distribution(spread: float) -> None:
    """Also of rates that are nearly always 0 or 1, and of ones that are known well."""
    heads = heads_for(300, spread=spread)
    heads[:20, 7:] = 12  # the bound
    shares = np.tile([0.025, 0.1, 0.5, 0.9, 0.975], (300, 1))
    found = quantiles(heads, shares)
    assert (np.diff(found, axis=1) >= -1e-7).all()
    weights, alphas, betas = parts(heads)

    def below(x: Array) -> Any:
        inside = np.clip(x, 0, 1)[:, :, None]
        return (weights[:, None] * stats.beta.cdf(inside, alphas[:, None], betas[:, None])).sum(axis=2)

    assert (below(found - 1e-7) <= shares + 1e-7).all()
    assert (below(found + 1e-7) >= shares - 1e-7).all()


def test_initial_biases_give_a_broad_distribution() -> None:
    biases = first_biases(3)[None]
    found = moments(biases)
    assert found.mean[0] == pytest.approx(0.5)
    assert 0.02 < found.variance[0] < 0.06
    assert components_of(first_biases(1)[None]) == 1
