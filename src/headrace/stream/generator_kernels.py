"""Kernels of the generator: each fills one column of a batch, as a pure function of seed and row number.

They keep no state. A random number is the hash of a key and a counter (splitmix64), so rows can be drawn in
any order, and a category's effect is recomputed by hashing its identity again.
"""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import cached

LATENT_FACTORS = 4
"""Length of a category's hidden vector: one hash holds four numbers of 16 bits."""

TAIL_START = 300.0
"""Approximate rank from which effects fade: rare categories are close to the average, as in real logs."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR2 = np.uint64(0x94D049BB133111EB)
_S11 = np.uint64(11)
_S16 = np.uint64(16)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)
_S32 = np.uint64(32)
_S48 = np.uint64(48)
_LOW16 = np.uint64(0xFFFF)
_UNIT = 2.0**-53
_HALF = 32767.5


@cached(nogil=True, inline="always")
def _hash(key: np.uint64, counter: int) -> np.uint64:
    x = key + np.uint64(counter) * _GOLDEN
    x = (x ^ (x >> _S30)) * _FACTOR1
    x = (x ^ (x >> _S27)) * _FACTOR2
    return x ^ (x >> _S31)


@cached(nogil=True, inline="always")
def _unit(hashed: np.uint64) -> float:
    return np.float64(hashed >> _S11) * _UNIT


@cached(nogil=True)
def draw_ranks(key: np.uint64, first: int, candidates: int, cardinality: int, ranks: Array) -> None:
    """Draw the popularity rank of each row's category, 0 for the most popular one.

    The distribution is Zipf's law with the exponent 1.2. The inverse of its distribution function raises to
    the power of -5, which needs no logarithm and so vectorises.

    Args:
        key: The key of the draws.
        first: The number of the first row.
        candidates: Number of consecutive rows that share a draw.
        cardinality: Number of ranks.
        ranks: Receives the ranks: int64 ``[rows]``.
    """
    span = 1.0 - (cardinality + 1.0) ** -0.2
    for row in range(len(ranks)):
        rest = 1.0 - _unit(_hash(key, (first + row) // candidates)) * span
        squared = rest * rest
        rank = np.int64(1.0 / (squared * squared * rest)) - 1
        ranks[row] = min(rank, cardinality - 1)


@cached(nogil=True)
def renew(key: np.uint64, times: Array, lifetime_rows: float, cardinality: int, ranks: Array) -> Array:
    """Give categories new identities at the end of their lifetimes, at times that differ between ranks.

    Args:
        key: The key of the times.
        times: The row number used as each row's time: int64 ``[rows]``.
        lifetime_rows: Lifetime of a category in rows.
        cardinality: Number of ranks.
        ranks: int64 ``[rows]``.

    Returns:
        The identities: int64 ``[rows]``.
    """
    identities = np.empty_like(ranks)
    for row in range(len(ranks)):
        age = times[row] / lifetime_rows + _unit(_hash(key, ranks[row]))
        identities[row] = ranks[row] + cardinality * np.int64(age)
    return identities


@cached(nogil=True, inline="always")
def _fade(rank: int) -> float:
    return TAIL_START / (TAIL_START + rank)


@cached(nogil=True)
def add_effects(key: np.uint64, ranks: Array, identities: Array, turn: Array, total: Array) -> None:
    """Add the effect of each row's category to the logit.

    Args:
        key: The key of the effects.
        ranks: int64 ``[rows]``.
        identities: int64 ``[rows]``.
        turn: Cosine and sine of the effects' rotation: float64 ``[2, rows]``.
        total: The logit, which is added to: float64 ``[rows]``.
    """
    for row in range(len(ranks)):
        hashed = _hash(key, identities[row])
        one = np.float64((hashed & _LOW16) + ((hashed >> _S16) & _LOW16)) / _HALF - 2.0
        other = np.float64(((hashed >> _S32) & _LOW16) + (hashed >> _S48)) / _HALF - 2.0
        total[row] += (turn[0, row] * one + turn[1, row] * other) * _fade(ranks[row])


@cached(nogil=True)
def hidden_vectors(key: np.uint64, ranks: Array, identities: Array, turn: Array, vectors: Array) -> None:
    """Compute the hidden vector of each row's category.

    Args:
        key: The key of the vectors.
        ranks: int64 ``[rows]``.
        identities: int64 ``[rows]``.
        turn: Cosine and sine of the vectors' rotation: float64 ``[2, rows]``.
        vectors: Receives the vectors: float64 ``[LATENT_FACTORS, rows]``.
    """
    for row in range(len(ranks)):
        hashed = _hash(key, identities[row])
        fade = _fade(ranks[row])
        a = (np.float64(hashed & _LOW16) / _HALF - 1.0) * fade
        b = (np.float64((hashed >> _S16) & _LOW16) / _HALF - 1.0) * fade
        c = (np.float64((hashed >> _S32) & _LOW16) / _HALF - 1.0) * fade
        d = (np.float64(hashed >> _S48) / _HALF - 1.0) * fade
        vectors[0, row] = turn[0, row] * a - turn[1, row] * b
        vectors[1, row] = turn[1, row] * a + turn[0, row] * b
        vectors[2, row] = turn[0, row] * c - turn[1, row] * d
        vectors[3, row] = turn[1, row] * c + turn[0, row] * d


@cached(nogil=True)
def add_products(one: Array, other: Array, strength: float, total: Array) -> None:
    """Add the dot products of two fields' hidden vectors, ``[LATENT_FACTORS, rows]``, to ``total``."""
    for row in range(len(total)):
        product = one[0, row] * other[0, row] + one[1, row] * other[1, row]
        product += one[2, row] * other[2, row] + one[3, row] * other[3, row]
        total[row] += strength * product


@cached(nogil=True)
def draw_counts(key: np.uint64, first: int, candidates: int, middle: float, numbers: Array) -> None:
    """Draw log-normal counts, and write log(1 + count), as in typical click logs.

    Args:
        key: The key of the draws.
        first: The number of the first row.
        candidates: Number of consecutive rows that share a draw.
        middle: The logarithm of the median count.
        numbers: Receives the logarithms: float32 ``[rows]``.
    """
    for row in range(len(numbers)):
        hashed = _hash(key, (first + row) // candidates)
        sixteens = (hashed & _LOW16) + ((hashed >> _S16) & _LOW16)
        sixteens += ((hashed >> _S32) & _LOW16) + (hashed >> _S48)
        normal = (np.float64(sixteens) / _HALF - 4.0) * 0.8660254037844386
        numbers[row] = np.log(1.0 + np.floor(np.exp(middle + normal)))


@cached(nogil=True)
def add_slopes(numbers: Array, slope: float, total: Array) -> None:
    """Add a linear effect of a dense field to the logit."""
    for row in range(len(total)):
        total[row] += slope * (numbers[row] - 1.0)


@cached(nogil=True)
def add_bumps(numbers: Array, height: float, middle: float, total: Array) -> None:
    """Add to the logit a dense field's effect with an extreme at ``middle``, which no straight line fits."""
    for row in range(len(total)):
        distance = numbers[row] - middle
        total[row] += height / (1.0 + 4.0 * distance * distance)


@cached(nogil=True)
def draw_labels(key: np.uint64, first: int, logits: Array, truth: Array, labels: Array) -> None:
    """Draw the labels.

    Args:
        key: The key of the draws.
        first: The number of the first row.
        logits: float64 ``[rows]``.
        truth: Receives the exact probability of each label: float32 ``[rows]``.
        labels: Receives the labels: int8 ``[rows]``.
    """
    for row in range(len(logits)):
        truth[row] = 1.0 / (1.0 + np.exp(-logits[row]))
        labels[row] = _unit(_hash(key, first + row)) < truth[row]


@cached(nogil=True)
def derive_key(seed: np.uint64, purpose: int, field: int) -> np.uint64:
    """Return the key of one field's draws for one purpose, which is independent of all others."""
    key: np.uint64 = _hash(_hash(seed, purpose + 1), field + 1)
    return key
