"""Predictions for many candidates of a request; terms that depend on the context alone are computed once.

Adjacent rows with equal context form a group, wherever they come from: a request that sent its context once,
one that repeated it, or several requests merged in a batch. For each group, the linear part, the sums of the
pair terms and the first layer's product with the context are computed once. For each row, only the
candidate's terms are added.

A row's logit is the same sum in the same order whether or not its neighbours share its context. It is
bit-identical alone, in a group and in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.interfaces import Weights
from headrace.ctr.kernels.matrix_product import pack, padded
from headrace.ctr.kernels.memory import LINE_FLOATS, aligned, fixed
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, POOLED, ModelSettings
from headrace.ctr.models.density import mean_logits, scratch_of
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.serving.context_kernels import score, scratch_size, to_probabilities
from headrace.ctr.serving.context_parts import PLACES, Prepared, Sizes
from headrace.ctr.tables import Table
from headrace.jit.packed_arguments import Standing
from headrace.stream.features import Features

_MOST_LANES = 32
"""Maximum number of an embedding's elements that are read at once, so that they fit in a few registers."""

_NOTHING = fixed(np.empty((0, 0), np.uint32))


def prepare(settings: ModelSettings, features: Features, weights: Weights) -> Prepared:
    """Lay out a model's weights for serving.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights; tables are not copied, all other arrays are.
    """
    sizes = _sizes(settings, features, weights.tables)
    parts = [_alone(settings, features, weights.dense)]
    layers: list[tuple[int, int, int, int]] = []
    if settings.kind in DEEP:
        layers = _lay_out_network(settings, features, weights.dense, parts)
    linear = _plain(weights.tables["linear"])
    return Prepared(
        sizes,
        fixed(features.slot_starts),
        fixed(features.mean_pooled),
        linear,
        linear if settings.kind == "lr" else _plain(weights.tables["embeddings"]),
        fixed(_joined(parts)),
        fixed(np.array(layers, dtype=np.int64).reshape(-1, 4)),
    )


def _plain(table: Table) -> Table:
    """Return a table over the same memory as one-dimensional, plain NumPy arrays."""
    values = np.asarray(table.values)
    return Table(fixed(values.reshape(-1)), fixed(np.asarray(table.scales)), int(table.shift))


def _alone(settings: ModelSettings, features: Features, dense: Mapping[str, Array]) -> Array:
    """Return the weights outside the network, one after the other."""
    parts = [dense["bias"].reshape(-1)]
    if features.dense_width:
        parts.append(dense["dense"].reshape(-1))
    if settings.kind == "fwfm":
        parts.append(dense["pairs"].reshape(-1))
    return np.concatenate(parts)


def _joined(parts: list[Array]) -> Array:
    """Return all weights in one array, each part aligned to a cache line."""
    whole = aligned(sum(_lines(len(part)) for part in parts))
    start = 0
    for part in parts:
        whole[start : start + len(part)] = part
        start += _lines(len(part))
    return whole


def _lines(count: int) -> int:
    return -(-count // LINE_FLOATS) * LINE_FLOATS


def _sizes(settings: ModelSettings, features: Features, tables: Mapping[str, Table]) -> Sizes:
    fields, of_context, factors = len(features.categorical), features.context_fields, settings.factors
    of_candidate = fields - of_context
    field_aware = settings.kind in FIELD_AWARE
    context_inputs = candidate_inputs = 0
    if settings.kind in DEEP:
        context_inputs = len(network_inputs(settings, features, context=True))
        candidate_inputs = len(network_inputs(settings, features, context=False))
    kind = "deepfm" if settings.kind in POOLED else settings.kind
    state_size = {"lr": 0, "fm": 2 * factors, "deepfm": 2 * factors, "fwfm": of_candidate * factors}.get(
        kind, of_candidate * of_context * factors
    )
    lanes = max(size for size in range(1, _MOST_LANES + 1) if factors % size == 0)
    return Sizes(
        kind=PLACES.index(kind),
        factors=() if settings.kind == "lr" else (None,) * factors,
        lanes=() if settings.kind == "lr" else (None,) * lanes,
        width=0 if settings.kind == "lr" else factors * (fields if field_aware else 1),
        stride=tables["linear" if settings.kind == "lr" else "embeddings"].values.shape[1],
        linear_stride=tables["linear"].values.shape[1],
        single=int(features.single_valued),
        fields=fields,
        context_fields=of_context,
        context_slots=features.context_slots,
        dense=features.dense_width,
        context_dense=features.context_dense,
        context_inputs=context_inputs,
        candidate_inputs=candidate_inputs,
        state=state_size + 1,
        heads=settings.heads,
    )


def network_inputs(settings: ModelSettings, features: Features, *, context: bool) -> list[int]:
    """Return the network's inputs that depend on the context alone, or those that do not, in order.

    Args:
        settings: Settings of a deep model.
        features: Layout of the model's rows.
        context: Whether to return the inputs that depend on the context alone.
    """
    fields, of_context = len(features.categorical), features.context_fields
    if settings.kind in POOLED:
        alone = [field < of_context for field in range(fields) for _ in range(settings.factors)]
    else:  # context fields come first, so a pair is in the context if its second field is
        alone = [second < of_context for first in range(fields) for second in range(first + 1, fields)]
    alone += [column < features.context_dense for column in range(features.dense_width)]
    return [index for index, whether in enumerate(alone) if whether is context]


def _lay_out_network(
    settings: ModelSettings, features: Features, dense: Mapping[str, Array], parts: list[Array]
) -> list[tuple[int, int, int, int]]:
    layers = []

    def add(array: Array) -> int:
        start = sum(_lines(len(part)) for part in parts)
        parts.append(array)
        return start

    def add_layer(weights: Array, bias: Array) -> None:
        wide = np.zeros(padded(len(bias)), np.float32)
        wide[: len(bias)] = bias
        layers.append((add(pack(weights)), add(wide), len(weights), len(wide)))

    first, bias = dense["layer0.weights"], dense["layer0.bias"]
    add_layer(first[network_inputs(settings, features, context=True)], bias)
    add_layer(first[network_inputs(settings, features, context=False)], bias)
    inputs = len(bias)
    for number in range(1, len(settings.hidden)):
        add_layer(dense[f"layer{number}.weights"], dense[f"layer{number}.bias"])
        inputs = len(dense[f"layer{number}.bias"])
    last = len(settings.hidden)
    output = np.ascontiguousarray(dense[f"layer{last}.weights"].T).reshape(-1)  # one head after the other
    layers.append((add(output), add(dense[f"layer{last}.bias"].reshape(-1)), inputs, settings.heads))
    return layers


class GroupedScorer:
    """A click model laid out for serving. Immutable; safe to call from several threads at once."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Lay out a model.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            weights: The model's weights.
        """
        self._missing = Missing.of(settings, features)
        prepared = prepare(settings, flagged(settings, features), weights)
        self._components = settings.components if settings.kind == "mdn" else 0
        self._model = Standing(prepared)
        self._crossing = crossing(settings, features) if settings.interactions else None
        self._scratch: list[Array] = []  # free scratch arrays; list methods are atomic
        self._scratch_size = scratch_size(prepared)

    def predict(self, indices: Array, dense: Array) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``; see ``logits``."""
        out = self.logits(indices, dense)
        to_probabilities(out)
        return out

    def heads(self, indices: Array, dense: Array) -> Array:
        """Return the heads of an mdn's distributions; see ``headrace.ctr.models.density``.

        Args:
            indices: As for ``logits``.
            dense: As for ``logits``.

        Returns:
            float32 ``[rows, heads]``.
        """
        out = np.zeros((len(indices), self._model.value.sizes.heads), np.float32)
        self._score(indices, dense, out.reshape(-1))
        return out

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``, all below ``features.rows``.
            dense: Dense features: float32 ``[rows, dense_width]``.
        """
        if self._components:
            logits = np.empty(len(indices), np.float32)
            mean_logits(self.heads(indices, dense), scratch_of(self._components), logits)
            return logits
        out = np.empty(len(indices), np.float32)
        self._score(indices, dense, out)
        return out

    def _score(self, indices: Array, dense: Array, out: Array) -> None:
        if self._missing is not None:
            dense = self._missing.flag(dense)
        crossed = _NOTHING if self._crossing is None else fixed(self._crossing.of(indices))
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = aligned(self._scratch_size)
        score(self._model, fixed(indices), fixed(dense), crossed, scratch, out)
        self._scratch.append(scratch)
