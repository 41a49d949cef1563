"""An mdn as it explains itself: what each field adds to the logit of the mean rate."""

from __future__ import annotations

import numpy as np

from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.models.missing import Missing
from headrace.ctr.serving.deep_scoring import DeepForm
from headrace.ctr.settings import ModelSettings
from headrace.stream.features import Features
from headrace.tensors import Array


class DensityForm(DeepForm):
    """mdn: its logits are those of the mean rates.

    Around a row, the network is linear, and the mean's logit is by its derivatives by the heads: each field
    adds what that says, and the rest is of no field.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Take weights; see ``headrace.ctr.serving.scoring.WeightsScorer``."""
        super().__init__(settings, features, weights)
        self._missing = Missing.of(settings, features)

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """What each field adds to the logit of one row."""
        heads = self._scorer.heads(indices.reshape(1, -1), dense.reshape(1, -1))[0].astype(np.float64)
        logit, slopes = _slopes(heads, self._settings.components)
        output = self._weights.dense[f"layer{len(self._settings.hidden)}.weights"].astype(np.float64)
        if self._missing is not None:
            dense = self._missing.flag(dense.reshape(1, -1))[0]
        # As if the heads were one logit, which moves the mean's by the first slope.
        found = self._explain(indices, dense, (output @ (slopes / slopes[0])).reshape(-1, 1))
        bias, *others = (_scaled(one, float(slopes[0])) for one in found)
        rest = logit - sum(one.contribution for one in others)
        return [Contribution(bias.field, bias.index, bias.value, rest, rest), *others]


def _slopes(heads: Array, components: int) -> tuple[float, Array]:
    """The logit of a row's mean rate, and its derivatives by the row's heads."""
    weights = np.exp(heads[1 : 1 + components] - heads[1 : 1 + components].max())
    weights /= weights.sum()
    logits = np.clip(heads[0] + heads[1 + components : 1 + 2 * components], -30, 30)
    means, rests = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(logits))
    mean, rest = float(weights @ means), float(weights @ rests)
    by_offset = weights * means * rests / (mean * rest)
    by_weight = weights * (means - mean) / (mean * rest)
    slopes = np.concatenate([[by_offset.sum()], by_weight, by_offset, np.zeros(components)])
    return float(np.log(mean / rest)), slopes


def _scaled(one: Contribution, factor: float) -> Contribution:
    return Contribution(one.field, one.index, one.value, one.weight * factor, one.contribution * factor)
