"""Predictions and explanations from the weights of any kind, without learning."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Contribution, Table, Weights
from headrace.ctr.model_settings import DEEP, POOLED, ModelSettings
from headrace.ctr.models.factorization_machines import logit, prefetch_coming, sigmoid
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.models.model_arrays import (
    NOTHING,
    BlockRows,
    Room,
    Served,
    Shape,
    Slots,
    Work,
    expected_shapes,
    fixed,
    shape_of,
)
from headrace.ctr.serving.explanations import (
    BIAS,
    explain_linear,
    explain_pairs,
    field_shares,
    network,
    pair_products,
    pairs_of,
    pooled_embeddings,
    slopes_of,
    table_rows,
)
from headrace.jit.kernel_cache import KERNEL, cached
from headrace.stream.block import Features

_PredictKernel = Callable[[Work, Served, Array], None]


class _KindScorer(Protocol):
    """Logits and explanations of a kind."""

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return each field's contribution to one row: uint32 ``[slots]``, float32 ``[dense_width]``."""


class WeightsScorer:
    """A click model that only predicts. Immutable; safe to call from several threads at once."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a scorer from weights; tables are not copied.

        Args:
            settings: Settings of the model.
            features: Layout of the rows.
            weights: The weights; tables may be wider than their weights, as learning tables are.

        Raises:
            ConfigError: The weights do not fit the settings and features.
        """
        _check(settings, features, weights)
        self.settings, self.features, self.weights = settings, features, weights
        self._of_kind = _scorer_of(settings, features, weights)

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""
        return self._of_kind.logits(indices, dense)

    def predict(self, indices: Array, dense: Array) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        return probabilities(self._of_kind.logits(indices, dense))

    def explain(self, indices: Array, dense: Array) -> list[list[Contribution]]:
        """Return each field's contribution to each row's logit; a row's contributions sum to its logit."""
        return [self._of_kind.explain(*row) for row in zip(indices, dense, strict=True)]


def _scorer_of(settings: ModelSettings, features: Features, weights: Weights) -> _KindScorer:
    """Create the scorer of a kind."""
    if settings.kind == "mdn":
        return _DensityScorer(settings, features, weights)
    if settings.kind in DEEP:
        return _DeepScorer(settings, features, weights)
    return _PlainScorer(settings, features, weights)


class _PlainScorer:
    """Scorer of the kinds without a network: lr, fm, fwfm and ffm."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a scorer from weights; see WeightsScorer."""
        self._settings, self._features, self._weights = settings, features, weights
        scaled = any(one.values.dtype != np.float32 for one in weights.tables.values())
        self._shape = shape_of(settings, features)._replace(scaled=scaled)
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._served = self._serve(weights)
        self._kernel = _predictor(self._shape)
        self._own = threading.local()

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``."""
        crossed = self._crossing.of(indices)
        rows = BlockRows(fixed(indices), fixed(crossed), fixed(dense), NOTHING, NOTHING)
        room: Room | None = getattr(self._own, "room", None)
        if room is None:
            room = self._own.room = Room.of(self._shape)
        logits = np.empty(len(indices), np.float32)
        self._kernel(Work(rows, self._slots, room), self._served, logits)
        return logits

    def explain(self, indices: Array, dense: Array) -> list[Contribution]:
        """Return the contribution of each field to one row's logit."""
        about = self._settings, self._features, self._weights, indices
        linear = explain_linear(*about, dense)
        return linear if self._settings.kind == "lr" else linear + explain_pairs(*about)

    def _serve(self, weights: Weights) -> Served:
        linear = _plain(weights.tables["linear"])
        embeddings = linear if self._settings.kind == "lr" else _plain(weights.tables["embeddings"])
        pairs = np.zeros((0, 0), np.float32)
        if self._settings.kind == "fwfm":
            pairs = np.triu(weights.dense["pairs"], 1)
        bias, dense = _line(weights.dense["bias"]), _line(weights.dense["dense"])
        return Served(linear, embeddings, bias, dense, _line(pairs + pairs.T))


@functools.cache
def _predictor(shape: Shape) -> _PredictKernel:
    """Return the kernel that writes the logits of rows."""

    @cached(**KERNEL)
    def predict(work, served, logits):  # type: ignore[no-untyped-def]
        for row in range(work.rows.indices.shape[0]):
            prefetch_coming(shape, work, served, row)
            logits[row] = logit(shape, work, served, row)

    made: _PredictKernel = predict
    return made


def probabilities(logits: Array) -> Array:
    """Return the probabilities of logits: float32 ``[rows]``."""
    made = np.empty(len(logits), np.float32)
    _sigmoids(logits, made)
    return made


@cached(nogil=True)
def _sigmoids(logits: Array, made: Array) -> None:
    for row in range(len(logits)):
        made[row] = sigmoid(logits[row])


def _line(array: Array) -> Array:
    return fixed(np.array(array, np.float32).reshape(1, -1))


def _plain(table: Table) -> Table:
    return Table(fixed(np.asarray(table.values)), fixed(np.asarray(table.scales)), int(table.shift))


def _check(settings: ModelSettings, features: Features, weights: Weights) -> None:
    """Check the shapes of all tables and dense arrays; scorers need no keys."""
    for path, shape in expected_shapes(settings, features).items():
        part, _, name = path.partition(".")
        if part == "table":
            _check_table(weights, name, *shape)
        elif part == "dense":
            _check_array(weights, name, shape)


def _check_table(weights: Weights, name: str, rows: int, width: int) -> None:
    table = weights.tables.get(name)
    if table is None:
        raise ConfigError(f"weights: the table {name!r} is missing")
    found = table.values.shape
    if len(found) != 2 or found[0] != rows or found[1] < width:
        raise ConfigError(f"weights: table {name!r}: expected {rows} rows of {width}, got {found}")
    if table.values.dtype not in (np.float32, np.int16, np.int8):
        raise ConfigError(
            f"weights: table {name!r}: expected float32, int16 or int8, got {table.values.dtype}"
        )


def _check_array(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    array = weights.dense.get(name)
    if array is None or array.shape != shape:
        got = "nothing" if array is None else f"{array.shape}"
        raise ConfigError(f"weights: {name!r}: expected an array of the shape {shape}, got {got}")


# ---- Kinds with a network ----


class _DeepScorer:
    """Scorer of deepfm and deepffm: the logits of serving, and explanations by local linearity.

    A network of ReLU units is linear around a row: an input contributes its value times the gradient, and the
    remainder belongs to no field. The inputs are the fields' embeddings (deepfm) or the pairs' terms
    (deepffm), then the dense features.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a scorer from weights; see WeightsScorer."""
        self._settings, self._weights = settings, weights
        self._features = flagged(settings, features)
        from headrace.ctr.serving.context import GroupedScorer  # noqa: PLC0415 - compiled kernels, only when used

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


class _DensityScorer(_DeepScorer):
    """Scorer of mdn, whose logits are those of the mean rates.

    The network is linear around a row, and the logit of the mean is linearised by its derivatives with
    respect to the heads. Each field contributes accordingly, and the remainder belongs to no field.
    """

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Create a scorer from weights; see WeightsScorer."""
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
