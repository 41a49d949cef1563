"""Explanations: contributions of fields to a logit, in NumPy.

The functions are the parts shared by all kinds. ``FieldEffects`` sums the contributions by field, for many
rows, as ``Scorer.explain`` does for one. The two fields of a pair share its term equally, which is its
Shapley value: a pair adds nothing without both. The flags of an mdn's missing vectors belong to the vectors.

Sums are in float64, so contributions sum to the kernels' logit up to its float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import Contribution, Table, Weights
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, POOLED, ModelSettings
from headrace.ctr.models.interactions import crossing, interaction_name
from headrace.ctr.models.missing import Missing, flagged
from headrace.stream.block import Features

BIAS = "(bias)"
"""Name of the contribution that belongs to no field."""


def explain_linear(
    settings: ModelSettings, features: Features, weights: Weights, indices: Array, dense: Array
) -> list[Contribution]:
    """Return the linear contributions to one row: the bias, fields, interactions and dense features.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights.
        indices: Indices of the row: uint32 ``[slots]``.
        dense: Dense features of the row: float32 ``[dense_width]``.
    """
    bias = float(weights.dense["bias"].reshape(-1)[0])
    made = [Contribution(BIAS, -1, 1.0, bias, bias)]
    table = weights.tables["linear"]
    shares = field_shares(features, indices[None])[0]
    for field, slot in features.field_slots():
        row, share = int(indices[slot]), float(shares[slot])
        if row:
            made.append(
                _weighed(field.name, row, share, float(table_rows(table, indices[slot : slot + 1])[0, 0]))
            )
    crossed = crossing(settings, features).of(np.ascontiguousarray(indices).reshape(1, -1))[0]
    for interaction, row in zip(settings.interactions, crossed, strict=True):
        if row:
            weight = float(table_rows(table, np.array([row]))[0, 0])
            made.append(_weighed(interaction_name(interaction), int(row), 1.0, weight))
    column = 0
    for field in features.numeric:
        values = dense[column : column + field.size].astype(np.float64)
        effects = weights.dense["dense"][column : column + field.size].astype(np.float64)
        if field.size == 1:
            made.append(_weighed(field.name, -1, float(values[0]), float(effects[0])))
        else:
            made.append(_weighed(field.name, -1, 1.0, float(values @ effects)))
        column += field.size
    return made


def pooled_embeddings(features: Features, table: Table, width: int, indices: Array) -> Array:
    """Return the pooled embeddings of rows' fields: float64 ``[rows, fields, width]``."""
    weighed = table_rows(table, indices)[..., :width] * field_shares(features, indices)[..., None]
    return sums_of(weighed, features.slot_starts[:-1])


def sums_of(values: Array, starts: Array) -> Array:
    """Return sums over groups of columns.

    Args:
        values: float64 ``[rows, columns]``, or with more axes.
        starts: The first column of each group; no group is empty.

    Returns:
        float64 ``[rows, groups]``, and the further axes.
    """
    if not len(starts):
        return np.zeros((len(values), 0, *values.shape[2:]))
    return np.add.reduceat(values, starts, axis=1)


def explain_pairs(
    settings: ModelSettings, features: Features, weights: Weights, indices: Array
) -> list[Contribution]:
    """Return the pair terms of one row, one contribution for each pair of fields, named ``a * b``."""
    names = [field.name for field in features.categorical]
    products = pair_products(settings, features, weights, indices[None])[0]
    made = []
    for first, second in pairs_of(len(names)):
        product = float(products[first, second])
        made.append(Contribution(f"{names[first]} * {names[second]}", -1, 1.0, product, product))
    return made


def pair_products(settings: ModelSettings, features: Features, weights: Weights, indices: Array) -> Array:
    """Return the term of each pair of fields, above the diagonal: float64 ``[rows, fields, fields]``."""
    fields, factors = len(features.categorical), settings.factors
    field_aware = settings.kind in FIELD_AWARE
    width = factors * fields if field_aware else factors
    pooled = pooled_embeddings(features, weights.tables["embeddings"], width, indices)
    if field_aware:
        aware = pooled.reshape(len(indices), fields, fields, factors)
        return np.triu(np.einsum("rabk,rbak->rab", aware, aware), 1)
    products = np.triu(pooled @ pooled.swapaxes(1, 2), 1)
    return products * weights.dense["pairs"] if settings.kind == "fwfm" else products


def pairs_of(fields: int) -> Iterator[tuple[int, int]]:
    """Return an iterator over all pairs of fields, in order of (first, second)."""
    return ((first, second) for first in range(fields) for second in range(first + 1, fields))


def field_shares(features: Features, indices: Array) -> Array:
    """Return the factor of the value in each slot of rows: float64 ``[rows, slots]``."""
    shares: Array = np.ones(indices.shape)
    for number in np.flatnonzero(features.mean_pooled & (np.diff(features.slot_starts) > 1)):
        start, stop = features.slot_starts[number : number + 2]
        counts = np.count_nonzero(indices[:, start:stop], axis=1)
        shares[:, start:stop] = 1 / np.maximum(counts, 1)[:, None]
    return shares


def table_rows(table: Table, rows: Array) -> Array:
    """Return rows of a table: float64, the shape of ``rows`` and ``[columns]``."""
    scales = table.scales[rows.astype(np.uint64) >> np.uint64(table.shift)]
    found: Array = table.values[rows].astype(np.float64) * scales[..., None]
    return found


def _weighed(name: str, row: int, value: float, weight: float) -> Contribution:
    return Contribution(name, row, value, weight, value * weight)


def network(weights: Weights, layers: Sequence[Array], inputs: Array, slopes: Array) -> tuple[Array, Array]:
    """Compute a network of ReLU units, and the gradient of a weighted sum of its outputs.

    Args:
        weights: The model's weights, for the biases.
        layers: The weights of each layer: ``[inputs, units]``.
        inputs: float64 ``[rows, inputs]``.
        slopes: The weights of the outputs in the sum: float64 ``[rows, outputs]``.

    Returns:
        The outputs ``[rows, outputs]``, and the gradients with respect to the inputs, both float64.
    """
    values, active = inputs, []
    for number, layer in enumerate(layers):
        values = values @ layer.astype(np.float64) + weights.dense[f"layer{number}.bias"][: layer.shape[1]]
        active.append(values > 0)
        values = np.where(active[-1], values, 0) if number < len(layers) - 1 else values
    gradients = slopes
    for number, layer in reversed(list(enumerate(layers))):
        gradients = gradients @ layer.astype(np.float64).T
        gradients = gradients * active[number - 1] if number else gradients
    return values, gradients


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
