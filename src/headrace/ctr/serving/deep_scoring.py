"""Predictions and explanations of deepfm, deepffm and mdn."""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.model_settings import POOLED, ModelSettings
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.serving.context import GroupedScorer
from headrace.ctr.serving.explanations import (
    BIAS,
    explain_linear,
    field_shares,
    network,
    pair_products,
    pairs_of,
    pooled_embeddings,
    slopes_of,
    table_rows,
)
from headrace.stream.features import Features


class DeepForm:
    """Form of deepfm and deepffm: the logits of serving, and explanations by local linearity.

    A network of ReLU units is linear around a row: an input contributes its value times the gradient, and the
    remainder belongs to no field. The inputs are the fields' embeddings (deepfm) or the pairs' terms
    (deepffm), then the dense features.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a form from weights; see ``headrace.ctr.serving.scoring.WeightsScorer``."""
        self._settings, self._weights = settings, weights
        self._features = flagged(settings, features)
        self._scorer = GroupedScorer(settings, features, weights)

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""
        return self._scorer.logits(indices, dense)

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return the contribution of each field to one row's logit."""
        return self._explain(
            indices, dense, self._weights.dense[f"layer{len(self._settings.hidden)}.weights"]
        )

    def _explain(self, indices: Array, dense: Array, output: Array) -> list[Contribution]:
        """Return the contribution of each field to one row's logit, given output weights ``[units, 1]``."""
        about = self._settings, self._features, self._weights, indices
        products = pair_products(*about[:3], indices[None])[0]
        linear = explain_linear(*about, dense)
        pairs = {pair: float(products[pair]) for pair in pairs_of(len(products))}
        inputs, embedded = self._inputs(indices, dense, list(pairs.values())), 0
        logit, gradient = self._network(inputs, output)
        effects = inputs * gradient
        added = [logit - float(effects.sum())]
        if self._settings.kind in POOLED:
            embedded = len(products) * self._settings.factors
            added += self._slot_effects(
                indices, gradient[:embedded].reshape(len(products), self._settings.factors)
            )
        else:
            embedded = len(pairs)
            added += [0.0] * int(np.count_nonzero(indices))
            pairs = {
                pair: term + effect for (pair, term), effect in zip(pairs.items(), effects, strict=False)
            }
        added += [0.0] * (len(linear) - len(added) - len(self._features.numeric))
        added += self._numeric_effects(effects[embedded:])
        names = [field.name for field in self._features.categorical]
        return [_raised(one, more) for one, more in zip(linear, added, strict=True)] + [
            Contribution(f"{names[first]} * {names[second]}", -1, 1.0, float(term), float(term))
            for (first, second), term in pairs.items()
        ]

    def _inputs(self, indices: Array, dense: Array, pairs: list[float]) -> Array:
        if self._settings.kind == "deepffm":
            return np.concatenate([pairs, dense.astype(np.float64)])
        table, factors = self._weights.tables["embeddings"], self._settings.factors
        pooled = pooled_embeddings(self._features, table, factors, indices[None])
        return np.concatenate([pooled.reshape(-1), dense.astype(np.float64)])

    def _network(self, inputs: Array, output: Array) -> tuple[float, Array]:
        """Return the network's logit, and its gradient with respect to the inputs."""
        logits, gradients = network(self._weights, [*self._hidden(), output], inputs[None], np.ones((1, 1)))
        return float(logits[0, 0]), gradients[0]

    def _hidden(self) -> list[Array]:
        return [self._weights.dense[f"layer{number}.weights"] for number in range(len(self._settings.hidden))]

    def _slot_effects(self, indices: Array, gradients: Array) -> list[float]:
        """Return the contribution of each value through its share of its field's embedding."""
        table, shares = self._weights.tables["embeddings"], field_shares(self._features, indices[None])[0]
        fields = np.repeat(np.arange(len(gradients)), np.diff(self._features.slot_starts))
        values = table_rows(table, indices)[:, : self._settings.factors]
        effects = shares * np.einsum("sk,sk->s", values, gradients[fields])
        return [float(effect) for effect in effects[indices != 0]]

    def _numeric_effects(self, effects: Array) -> list[float]:
        made, column = [], 0
        for field in self._features.numeric:
            made.append(float(effects[column : column + field.size].sum()))
            column += field.size
        return made


def _raised(one: Contribution, more: float) -> Contribution:
    """Return a contribution with the network's part added."""
    whole = one.contribution + more
    weight = whole / one.value if one.value and one.field != BIAS else whole
    return Contribution(one.field, one.index, one.value, weight, whole)


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


def _scaled(one: Contribution, factor: float) -> Contribution:
    return Contribution(one.field, one.index, one.value, one.weight * factor, one.contribution * factor)
