"""How far weights move that forget, by how many of them a row moves.

All weights that a row touches move against the same error. Where their sums of squares forget, those that are
seen rarely keep taking the long steps that they began with, and the more of them there are, the further the
row's prediction moves: with 26 fields, the rates that are right for six move it too far. So a row's values
share what six fields move together. What every row touches has long forgotten its first steps, and shares
nothing: the bias, and fwfm's weights of pairs, which move further even, for their gradients are small. Nor do
ffm's embeddings, each of which is for one other field: more fields are more of them, not more for each.

In batches what is frequent moves once for many rows, and linear weights are better off if they share less: by
the root of how many there are (decision 0016).
"""

from __future__ import annotations

import math

import msgspec

from headrace.ctr.settings import FIELD_AWARE, ModelSettings, Optimizer
from headrace.stream.features import Features

PAIRS_STEP = 4.0
"""How many times as far as embeddings fwfm's weights of pairs move."""

_FIELDS = 6
"""For so many fields, and fewer, rates are what they say."""


def share_of(settings: ModelSettings, features: Features) -> float:
    """What each of a row's values moves, of what it would alone: at most 1.

    Args:
        settings: The model's.
        features: The layout; a field whose values are averaged counts once, summed ones each.
    """
    fields = sum(1 if one.pooling == "mean" else one.values for one in features.categorical)
    return min(1.0, _FIELDS / max(fields + len(settings.interactions), 1))


def embeddings_share(settings: ModelSettings, share: float) -> float:
    """What an embedding moves, of what it would alone.

    Args:
        settings: The model's.
        share: What ``share_of`` says.
    """
    return 1.0 if settings.kind in FIELD_AWARE else share


def sharing(optimizer: Optimizer, share: float) -> Optimizer:
    """The optimizer with a part of its rate, if it is one that forgets; else as it is."""
    if optimizer.kind != "forgetting":
        return optimizer
    return msgspec.structs.replace(optimizer, learning_rate=optimizer.learning_rate * share)


def shared(optimizer: Optimizer, name: str, settings: ModelSettings, features: Features) -> Optimizer:
    """How a group of weights learns, of what is said for it.

    Args:
        optimizer: What is said.
        name: The group's.
        settings: The model's.
        features: The layout.
    """
    share = share_of(settings, features)
    linear = share if settings.online else math.sqrt(share)
    dense = linear / math.sqrt(_longest(features)) if settings.kind == "mdn" else linear
    parts = {"linear": linear, "dense": dense, "embeddings": embeddings_share(settings, share)}
    return sharing(optimizer, {**parts, "pairs": PAIRS_STEP}.get(name, 1.0))


def _longest(features: Features) -> int:
    """The numbers of the longest vector: against one error all of them move."""
    return max((field.size for field in features.numeric), default=1)
