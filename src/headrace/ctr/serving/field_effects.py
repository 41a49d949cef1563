"""Contributions of fields to the logits of many rows: ``Scorer.explain`` summed by field, in arrays.

The two fields of a pair share its term equally, which is its Shapley value: a pair adds nothing without both.
The flags of an mdn's missing vectors belong to the vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.interfaces import Weights
from headrace.ctr.model_settings import DEEP, POOLED, ModelSettings
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.serving.deep_scoring import network, slopes_of
from headrace.ctr.serving.explanations import (
    field_shares,
    pair_products,
    pooled_embeddings,
    sums_of,
    table_rows,
)
from headrace.stream.features import Features

_ROWS = 128
"""Rows computed together: a row of an ffm with 40 fields takes some 100 KB."""


class FieldEffects:
    """The contributions of a model's fields. Immutable; safe to call from several threads at once."""

    def __init__(
        self,
        settings: ModelSettings,
        features: Features,
        weights: Weights,
        heads: Callable[[Array, Array], Array],
    ) -> None:
        """Describe a model.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            weights: The model's weights.
            heads: Returns the heads of an mdn; see ``GroupedScorer.heads``.
        """
        self._settings, self._weights, self._heads = settings, weights, heads
        self._features, self._missing = flagged(settings, features), Missing.of(settings, features)
        self._crossing, self._numeric = crossing(settings, features), len(features.numeric)
        vectors = [place for place, one in enumerate(features.numeric) if one.role == "vector"]
        self._flagged = vectors if self._missing is not None else []
        sizes = [field.size for field in self._features.numeric]
        self._columns = np.cumsum([0, *sizes], dtype=np.int64)[:-1]
        places = {field.name: place for place, field in enumerate(features.categorical)}
        self._crossed = [[places[name] for name in one.fields] for one in settings.interactions]

    def of(self, indices: Array, dense: Array) -> Array:
        """Return the contributions, which sum to the logits.

        Args:
            indices: uint32 ``[rows, slots]``.
            dense: float32 ``[rows, dense_width]``.

        Returns:
            float64 ``[rows, fields + 1]``: categorical fields, dense features, and what belongs to no field.
        """
        starts = range(0, max(len(indices), 1), _ROWS)
        parts = [self._of(indices[at : at + _ROWS], dense[at : at + _ROWS]) for at in starts]
        return np.concatenate(parts)

    def _of(self, indices: Array, dense: Array) -> Array:
        numbers = (dense if self._missing is None else self._missing.flag(dense)).astype(np.float64)
        categorical = self._linear(indices)
        numeric = sums_of(numbers * self._weights.dense["dense"], self._columns)
        rest: Array = np.full(len(indices), float(self._weights.dense["bias"].reshape(-1)[0]))
        if self._settings.kind != "lr":
            products = pair_products(self._settings, self._features, self._weights, indices)
            categorical += _halves(products)
            if self._settings.kind in DEEP:
                logits, slopes = self._slopes(indices, dense)
                outputs, of_categories, of_numbers = self._network_effects(indices, numbers, products, slopes)
                categorical = categorical * slopes[:, :1] + of_categories
                numeric = numeric * slopes[:, :1] + of_numbers
                if logits is None:
                    rest += outputs[:, 0] - of_categories.sum(axis=1) - of_numbers.sum(axis=1)
                else:
                    rest = logits - categorical.sum(axis=1) - numeric.sum(axis=1)
        numeric[:, self._flagged] += numeric[:, self._numeric :]
        return np.column_stack([categorical, numeric[:, : self._numeric], rest])

    def _linear(self, indices: Array) -> Array:
        """Return the linear terms and interactions of categorical fields: float64 ``[rows, fields]``."""
        table = self._weights.tables["linear"]
        terms = table_rows(table, indices)[..., 0] * field_shares(self._features, indices)
        made = sums_of(terms, self._features.slot_starts[:-1])
        crossed = table_rows(table, self._crossing.of(np.ascontiguousarray(indices)))[..., 0] / 2
        for number, fields in enumerate(self._crossed):
            for field in fields:
                made[:, field] += crossed[:, number]
        return made

    def _slopes(self, indices: Array, dense: Array) -> tuple[Array | None, Array]:
        """Return an mdn's logits, and the derivatives of the logits with respect to the network's outputs."""
        if self._settings.kind != "mdn":
            return None, np.ones((len(indices), 1))
        return slopes_of(self._heads(indices, dense).astype(np.float64), self._settings.components)

    def _network_effects(
        self, indices: Array, numbers: Array, products: Array, slopes: Array
    ) -> tuple[Array, Array, Array]:
        """Return the network's outputs, and what fields add to the outputs' sum by the given slopes.

        A network of ReLU units is linear around a row: an input adds its value times the gradient.

        Returns:
            float64 ``[rows, outputs]``, ``[rows, categorical fields]`` and ``[rows, dense features]``.
        """
        fields, factors = products.shape[1], self._settings.factors
        upper = (slice(None), *np.triu_indices(fields, 1))
        if self._settings.kind in POOLED:
            table = self._weights.tables["embeddings"]
            embedded = pooled_embeddings(self._features, table, factors, indices).reshape(
                len(indices), fields * factors
            )
        else:
            embedded = products[upper]
        inputs = np.concatenate([embedded, numbers], axis=1)
        numbered = range(len(self._settings.hidden) + 1)
        layers = [self._weights.dense[f"layer{number}.weights"] for number in numbered]
        outputs, gradients = network(self._weights, layers, inputs, slopes)
        effects, width = inputs * gradients, embedded.shape[1]
        if self._settings.kind in POOLED:
            of_categories = effects[:, :width].reshape(len(indices), fields, factors).sum(axis=2)
        else:
            pairs = np.zeros_like(products)
            pairs[upper] = effects[:, :width]
            of_categories = _halves(pairs)
        return outputs, of_categories, sums_of(effects[:, width:], self._columns)


def _halves(pairs: Array) -> Array:
    """Return each field's half of its pairs' terms ``[rows, fields, fields]``: float64 ``[rows, fields]``."""
    halves: Array = (pairs.sum(axis=1) + pairs.sum(axis=2)) / 2
    return halves
