"""Kinds with a network as they predict, and as they explain themselves."""

from __future__ import annotations

import numpy as np

from headrace.ctr.interfaces import Contribution, Weights
from headrace.ctr.models.missing import flagged
from headrace.ctr.serving.context import GroupedScorer
from headrace.ctr.serving.explanations import (
    BIAS,
    explain_linear,
    field_shares,
    pair_products,
    pairs_of,
    pooled_embeddings,
    table_rows,
)
from headrace.ctr.settings import POOLED, ModelSettings
from headrace.stream.features import Features
from headrace.tensors import Array


class DeepForm:
    """deepfm and deepffm: their logits are those of serving; a network explains itself as locally linear.

    Around a row, a network of ReLU units is linear: an input contributes itself times the gradient, and what
    is left is of no field. For deepfm these inputs are the fields' embeddings, for deepffm the pairs' terms.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Take weights; see ``headrace.ctr.serving.scoring.WeightsScorer``."""
        self._settings, self._weights = settings, weights
        self._features = flagged(settings, features)
        self._scorer = GroupedScorer(settings, features, weights)

    def logits(self, indices: Array, dense: Array) -> Array:
        """The logits of rows: float32 ``[rows]``."""
        return self._scorer.logits(indices, dense)

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """What each field adds to the logit of one row."""
        return self._explain(
            indices, dense, self._weights.dense[f"layer{len(self._settings.hidden)}.weights"]
        )

    def _explain(self, indices: Array, dense: Array, output: Array) -> list[Contribution]:
        """What each field adds to one row's logit, with the last layer's weights: ``[units, 1]``."""
        about = self._settings, self._features, self._weights, indices
        products = pair_products(*about)
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
        pooled = pooled_embeddings(self._features, table, factors, indices)
        return np.concatenate([pooled.reshape(-1), dense.astype(np.float64)])

    def _network(self, inputs: Array, output: Array) -> tuple[float, Array]:
        """The network's logit, and its gradient by the inputs."""
        arrays, values, active = self._weights.dense, inputs, []
        layers = [arrays[f"layer{number}.weights"] for number in range(len(self._settings.hidden))] + [output]
        for number, weights in enumerate(layers):
            values = values @ weights.astype(np.float64) + arrays[f"layer{number}.bias"][: weights.shape[1]]
            active.append(values > 0)
            values = np.where(active[-1], values, 0) if number < len(layers) - 1 else values
        gradient: Array = np.ones(1)
        for number, weights in reversed(list(enumerate(layers))):
            gradient = weights.astype(np.float64) @ gradient
            gradient = gradient * active[number - 1] if number else gradient
        return float(values[0]), gradient

    def _slot_effects(self, indices: Array, gradients: Array) -> list[float]:
        """What each value adds through its part of its field's embedding."""
        table, shares = self._weights.tables["embeddings"], field_shares(self._features, indices)
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
    """A contribution with the network's part."""
    whole = one.contribution + more
    weight = whole / one.value if one.value and one.field != BIAS else whole
    return Contribution(one.field, one.index, one.value, weight, whole)
