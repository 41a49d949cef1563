"""Explanations of an mdn: the contribution of each field to the logit of the mean rate."""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.missing import Missing
from headrace.ctr.serving.deep_scoring import DeepForm
from headrace.stream.features import Features


class DensityForm(DeepForm):
    """Form of mdn, whose logits are those of the mean rates.

    The network is linear around a row, and the logit of the mean is linearised by its derivatives with
    respect to the heads. Each field contributes accordingly, and the remainder belongs to no field.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a form from weights; see ``headrace.ctr.serving.scoring.WeightsScorer``."""
        super().__init__(settings, features, weights)
        self._missing = Missing.of(settings, features)

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return the contribution of each field to one row's logit."""
        heads = self._scorer.heads(indices.reshape(1, -1), dense.reshape(1, -1)).astype(np.float64)
        (logit,), (slopes,) = slopes_of(heads, self._settings.components)
        output = self._weights.dense[f"layer{len(self._settings.hidden)}.weights"].astype(np.float64)
        if self._missing is not None:
            dense = self._missing.flag(dense.reshape(1, -1))[0]
        # Combine the heads into one logit by their slopes relative to the first; rescale below.
        found = self._explain(indices, dense, (output @ (slopes / slopes[0])).reshape(-1, 1))
        bias, *others = (_scaled(one, float(slopes[0])) for one in found)
        rest = float(logit) - sum(one.contribution for one in others)
        return [Contribution(bias.field, bias.index, bias.value, rest, rest), *others]


def slopes_of(heads: Array, components: int) -> tuple[Array, Array]:
    """Return the logits of rows' mean rates, and their derivatives with respect to the heads.

    Args:
        heads: float64 ``[rows, heads]``.
        components: Number of components of a row's distribution.

    Returns:
        float64 ``[rows]`` and ``[rows, heads]``.
    """
    weights = np.exp(heads[:, 1 : 1 + components] - heads[:, 1 : 1 + components].max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    logits = np.clip(heads[:, :1] + heads[:, 1 + components : 1 + 2 * components], -30, 30)
    means, rests = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(logits))
    mean, rest = ((weights * one).sum(axis=1, keepdims=True) for one in (means, rests))
    by_offset = weights * means * rests / (mean * rest)
    by_weight = weights * (means - mean) / (mean * rest)
    by_first, none = by_offset.sum(axis=1, keepdims=True), np.zeros((len(heads), components))
    return np.log(mean / rest)[:, 0], np.concatenate([by_first, by_weight, by_offset, none], axis=1)


def _scaled(one: Contribution, factor: float) -> Contribution:
    return Contribution(one.field, one.index, one.value, one.weight * factor, one.contribution * factor)
