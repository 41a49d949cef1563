"""Scaling of learning rates by the number of weights that a row moves, where sums of squares decay.

All weights that a row touches move against the same error. Where their sums of squares decay, rare weights
keep taking steps as long as their first ones. The more of them a row has, the further its prediction moves:
with 26 fields, the rates that suit six move it too far. So a row's values share the total step of six fields.

The bias and fwfm's weights of pairs do not share, because every row touches them and they are soon past their
first steps; the weights of pairs even take longer steps, because their gradients are small. ffm's embeddings
do not share either: each is for one other field, so more fields mean more embeddings, not more steps for
each.

In batches, frequent weights move once for many rows, and linear weights do better with the square root of the
share (decision 0016).
"""

from __future__ import annotations

import math

import msgspec

from headrace.ctr.model_settings import FIELD_AWARE, ModelSettings, Optimizer
from headrace.stream.features import Features

PAIRS_STEP = 4.0
"""Learning rate of fwfm's weights of pairs, as a multiple of that of embeddings."""

_FIELDS = 6
"""Number of fields up to which learning rates are not scaled."""


def share_of(settings: ModelSettings, features: Features) -> float:
    """Return the factor of the learning rate of each of a row's values: at most 1.

    Args:
        settings: The model's settings.
        features: Layout of the rows; a field with averaged values counts once, one with summed values once
            per value.
    """
    fields = sum(1 if one.pooling == "mean" else one.values for one in features.categorical)
    return min(1.0, _FIELDS / max(fields + len(settings.interactions), 1))


def embeddings_share(settings: ModelSettings, share: float) -> float:
    """Return the factor of the learning rate of an embedding.

    Args:
        settings: The model's settings.
        share: Result of ``share_of``.
    """
    return 1.0 if settings.kind in FIELD_AWARE else share


def sharing(optimizer: Optimizer, share: float) -> Optimizer:
    """Return the optimizer with its rate multiplied by ``share`` if it is ``forgetting``, else unchanged."""
    if optimizer.kind != "forgetting":
        return optimizer
    return msgspec.structs.replace(optimizer, learning_rate=optimizer.learning_rate * share)


def shared(optimizer: Optimizer, name: str, settings: ModelSettings, features: Features) -> Optimizer:
    """Return the optimizer of a group of weights with its scaled learning rate.

    Args:
        optimizer: Configured optimizer of the group.
        name: Name of the group.
        settings: The model's settings.
        features: Layout of the rows.
    """
    share = share_of(settings, features)
    linear = share if settings.online else math.sqrt(share)
    dense = linear / math.sqrt(_longest(features)) if settings.kind == "mdn" else linear
    parts = {"linear": linear, "dense": dense, "embeddings": embeddings_share(settings, share)}
    return sharing(optimizer, {**parts, "pairs": PAIRS_STEP}.get(name, 1.0))


def _longest(features: Features) -> int:
    """Return the length of the longest vector, all of whose weights move against one error."""
    return max((field.size for field in features.numeric), default=1)
