"""Ads whose pictures say something of their click rate, which is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from demo.unseen_data import Items, Split
from headrace.base.tensors import Array
from headrace.stream.schema import Field

PICTURES = 72_000
"""How many ads the generator draws."""

_ADVERTISERS = 30


def pictures(seed: int = 0) -> Split:
    """Ads with a handwritten digit for a picture, which moves the rate, and its spread, more than all else.

    Pictures are scikit-learn's digits; the encoder is a network's hidden layer that told digits apart on
    other pictures than any ad has. Ads that are unseen have pictures that no other ad has.

    Args:
        seed: What is drawn from.
    """
    random = np.random.default_rng(seed)
    encode, images, digits = _encoder(seed)
    half = len(images) // 2
    is_unseen = np.arange(PICTURES) >= PICTURES * 5 // 6
    shown = np.where(
        is_unseen, random.integers(half, len(images), PICTURES), random.integers(0, half, PICTURES)
    )
    advertisers = random.integers(0, _ADVERTISERS, PICTURES)
    of_digit, of_advertiser = random.normal(size=10) * 0.9, random.normal(size=_ADVERTISERS) * 0.4
    spread = np.where(np.arange(10) % 3 == 0, 0.7, 0.25)[digits[shown]]
    noise = random.normal(size=PICTURES) * spread
    # One digit is a matter of taste: such an ad either works or does not.
    noise += np.where(digits[shown] == 7, random.choice([-1.2, 1.2], PICTURES), 0.0)
    rates = 1 / (1 + np.exp(2.2 - of_digit[digits[shown]] - of_advertiser[advertisers] - noise))
    views = np.minimum(random.lognormal(4.5, 1.2, PICTURES), 20_000).astype(np.int64) + 1
    items = Items(
        {"advertiser": pa.array(advertisers)},
        (Field(name="advertiser", role="categorical", buckets=256),),
        "picture",
        encode(images[shown] + random.normal(size=(PICTURES, images.shape[1])) * 0.5),
        random.binomial(views, rates),
        views,
        rates,
    )
    return Split(items.chosen(np.flatnonzero(~is_unseen)), items.chosen(np.flatnonzero(is_unseen)))


def _encoder(seed: int) -> tuple[Callable[[Array], Array], Array, Array]:
    """What makes vectors of length 1 of pictures; pictures that it has not learnt from, and their digits."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - only here
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415 - only here

    data: Any = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    third = len(order) // 3
    network = MLPClassifier((32,), max_iter=300, random_state=seed)
    network.fit(data.data[order[:third]], data.target[order[:third]])

    def encode(images: Array) -> Array:
        active = np.maximum(images @ network.coefs_[0] + network.intercepts_[0], 0)
        made: Array = active / np.maximum(np.linalg.norm(active, axis=1, keepdims=True), 1e-9)
        return made.astype(np.float32)

    return encode, data.data[order[third:]], data.target[order[third:]]
