"""Kernels of the generator: each fills one column of a batch, as a pure function of seed and row number.

Nothing is remembered: a random number is the hash of a key and a counter (splitmix64), so that rows can be
drawn in any order, and a category's effect is looked up by hashing its identity again.
"""

from __future__ import annotations

import numpy as np

from headrace.compiled import cached
from headrace.tensors import Array

LATENT_FACTORS = 4
"""How many numbers a category's hidden vector has: one hash holds four of 16 bits."""

TAIL_START = 300.0
"""From about which rank on categories' effects fade: the rare is close to the average, as in real logs."""

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
    """Draw how popular each row's category is: 0 for the most popular one.

    Zipf's law with the exponent 1.2, whose inverse is a fifth power: no logarithm, so that it vectorises.

    Args:
        key: What the draws depend on.
        first: The number of the first row.
        candidates: How many rows in a row share a draw.
        cardinality: How many ranks there are.
        ranks: Filled: int64 ``[rows]``.
    """
    span = 1.0 - (cardinality + 1.0) ** -0.2
    for row in range(len(ranks)):
        rest = 1.0 - _unit(_hash(key, (first + row) // candidates)) * span
        squared = rest * rest
        rank = np.int64(1.0 / (squared * squared * rest)) - 1
        ranks[row] = min(rank, cardinality - 1)


@cached(nogil=True)
def renew(key: np.uint64, times: Array, lifetime_rows: float, cardinality: int, ranks: Array) -> Array:
    """Replace categories at the end of their life: each rank, at a time of its own, gets a new identity.

    Args:
        key: What the times depend on.
        times: The row numbers at which each row's category is looked up: int64 ``[rows]``.
        lifetime_rows: For how many rows a category lives.
        cardinality: How many ranks there are.
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
    """Add what each row's category adds to the logit.

    Args:
        key: What the effects depend on.
        ranks: int64 ``[rows]``.
        identities: int64 ``[rows]``.
        turn: The cosine and sine of how far effects have turned: float64 ``[2, rows]``.
        total: Added to: float64 ``[rows]``.
    """
    for row in range(len(ranks)):
        hashed = _hash(key, identities[row])
        one = np.float64((hashed & _LOW16) + ((hashed >> _S16) & _LOW16)) / _HALF - 2.0
        other = np.float64(((hashed >> _S32) & _LOW16) + (hashed >> _S48)) / _HALF - 2.0
        total[row] += (turn[0, row] * one + turn[1, row] * other) * _fade(ranks[row])


@cached(nogil=True)
def hidden_vectors(key: np.uint64, ranks: Array, identities: Array, turn: Array, vectors: Array) -> None:
    """Look up the hidden vectors of each row's category.

    Args:
        key: What the vectors depend on.
        ranks: int64 ``[rows]``.
        identities: int64 ``[rows]``.
        turn: The cosine and sine of how far the vectors have turned: float64 ``[2, rows]``.
        vectors: Filled: float64 ``[LATENT_FACTORS, rows]``.
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
    """Add the products of two fields' hidden vectors, ``[LATENT_FACTORS, rows]``, to ``total``."""
    for row in range(len(total)):
        product = one[0, row] * other[0, row] + one[1, row] * other[1, row]
        product += one[2, row] * other[2, row] + one[3, row] * other[3, row]
        total[row] += strength * product


@cached(nogil=True)
def draw_counts(key: np.uint64, first: int, candidates: int, middle: float, numbers: Array) -> None:
    """Draw log-normal counts, and give the logarithm of one plus each, as producers of such rows do.

    Args:
        key: What the draws depend on.
        first: The number of the first row.
        candidates: How many rows in a row share a draw.
        middle: The logarithm of the median count.
        numbers: Filled: float32 ``[rows]``.
    """
    for row in range(len(numbers)):
        hashed = _hash(key, (first + row) // candidates)
        sixteens = (hashed & _LOW16) + ((hashed >> _S16) & _LOW16)
        sixteens += ((hashed >> _S32) & _LOW16) + (hashed >> _S48)
        normal = (np.float64(sixteens) / _HALF - 4.0) * 0.8660254037844386
        numbers[row] = np.log(1.0 + np.floor(np.exp(middle + normal)))


@cached(nogil=True)
def add_slopes(numbers: Array, slope: float, total: Array) -> None:
    """Add what is linear in a dense field to the logit."""
    for row in range(len(total)):
        total[row] += slope * (numbers[row] - 1.0)


@cached(nogil=True)
def add_bumps(numbers: Array, height: float, middle: float, total: Array) -> None:
    """Add what is highest in the middle of a dense field to the logit: no straight line fits it."""
    for row in range(len(total)):
        distance = numbers[row] - middle
        total[row] += height / (1.0 + 4.0 * distance * distance)


@cached(nogil=True)
def draw_labels(key: np.uint64, first: int, logits: Array, truth: Array, labels: Array) -> None:
    """Draw the labels.

    Args:
        key: What the draws depend on.
        first: The number of the first row.
        logits: float64 ``[rows]``.
        truth: Filled with the exact probability of each label: float32 ``[rows]``.
        labels: Filled: int8 ``[rows]``.
    """
    for row in range(len(logits)):
        truth[row] = 1.0 / (1.0 + np.exp(-logits[row]))
        labels[row] = _unit(_hash(key, first + row)) < truth[row]


@cached(nogil=True)
def derive_key(seed: np.uint64, purpose: int, field: int) -> np.uint64:
    """The key of one field's draws for one purpose: unrelated to all others."""
    key: np.uint64 = _hash(_hash(seed, purpose + 1), field + 1)
    return key
