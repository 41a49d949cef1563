"""A click model: its tables and weights, and its two forms, one that learns and one that only predicts.

The same kernels read the tables of both: the weights of row ``r`` are ``values[r, :width] * scales[r >>
shift]``. A learning table stores a row's optimizer state after its weights, in the same cache lines. A
float32 table has the single scale 1.0, so stripping leaves predictions bit-identical.

Both forms predict from the same arrays, through ``headrace.ctr.serving.scoring``. A LearningModel also has
its optimizers' state. Servers predict with ``headrace.ctr.serving.context``, and use a Scorer for
explanations.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.model_settings import ModelSettings, OptimizerKind
from headrace.stream.block import Block, Features

NO_SHIFT = 63
"""Shift that maps every row number to 0: one scale for all rows."""

STATE_PER_WEIGHT: dict[OptimizerKind, int] = {
    **{"sgd": 0, "adagrad": 1, "forgetting": 1},
    **{"ftrl": 2, "adam": 2, "lazy_adam": 2},
}
"""Size of an optimizer's state, in numbers per weight."""

ONE_SCALE = np.ones(1, dtype=np.float32)


class Table(NamedTuple):
    """Weights as they are served; a tuple, so that kernels accept it directly.

    Attributes:
        values: ``[rows, width]``: float32, int16 or int8.
        scales: Factor of each group of ``2**shift`` rows: float32 ``[groups]``.
        shift: Base-2 logarithm of the rows in a group; ``NO_SHIFT`` for one group.
    """

    values: Array
    scales: Array
    shift: int

    @classmethod
    def of(cls, weights: Array) -> Table:
        """Return a table of float32 weights ``[rows, width]``."""
        return cls(weights, ONE_SCALE, NO_SHIFT)


@dataclass(slots=True)
class LearningTable:
    """Weights that learn, with their optimizer's state.

    Attributes:
        values: float32 ``[rows, width * (1 + state per weight)]``: a row's weights, then its optimizer's
            state in groups of ``width`` (Adagrad and ``forgetting``: sums of squares; FTRL: z, n; Adam: m,
            v).
        width: Number of weights in a row.
        optimizer: The optimizer that owns the state.
    """

    values: Array
    width: int
    optimizer: OptimizerKind

    @property
    def weights(self) -> Array:
        """The weights without the optimizer's state, as a view ``[rows, width]``."""
        return self.values[:, : self.width]

    def as_table(self) -> Table:
        """Return a table that shares this one's memory, for predictions while learning goes on."""
        return Table.of(self.values)

    def strip(self) -> Table:
        """Return a copy without the optimizer's state, for publication."""
        return Table.of(self.weights.copy())  # not ascontiguousarray, which would not copy for SGD


@dataclass(frozen=True)
class Weights:
    """All arrays that a prediction depends on.

    Attributes:
        tables: ``linear`` ``[rows + interaction buckets, 1]`` and, except for lr, ``embeddings``
            ``[rows, factors]`` (ffm and deepffm: ``[rows, fields * factors]``). In ``linear``, the weights of
            interactions come last, in the order of the settings.
        dense: All other arrays, by name, float32: ``bias`` ``[1]``; ``dense`` ``[dense_width]``, the linear
            weights of dense features; ``pairs`` ``[fields, fields]`` (fwfm, upper triangle); the network's
            ``layer0.weights`` ``[inputs, units]``, ``layer0.bias`` ``[units]``, … , the last one with one
            unit. The inputs of a network are the pooled embeddings of the fields one after the other
            (deepfm, mdn), or the dot products of the field pairs in order of (first, second) (deepffm). The
            dense features follow. In an mdn, a flag for each vector field follows the dense features, and the
            last layer has a unit for each head (``headrace.ctr.models.density``).
        keys: The key that owns each row of an exact field's table, by the table's name: uint64 ``[buckets]``;
            see ``headrace.ctr.models.vocabulary``.
    """

    tables: Mapping[str, Table]
    dense: Mapping[str, Array]
    keys: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of one field to a row's logit.

    Attributes:
        field: Name of the field, ``a * b`` for a pair, or ``(bias)``.
        index: Row of the table; -1 if the contribution belongs to no row.
        value: Value of the dense feature; for a category, its share in the field's pooling, 1.0 unless the
            field averages several values; 1.0 for anything else, such as a vector.
        weight: The linear or effective weight.
        contribution: The amount added to the logit.
    """

    field: str
    index: int
    value: float
    weight: float
    contribution: float


class Scorer(Protocol):
    """A click model that only predicts. Immutable; safe to call from several threads at once."""

    settings: ModelSettings
    features: Features
    weights: Weights

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``, C-contiguous, all below ``features.rows``.
            dense: Dense features: float32 ``[rows, dense_width]``, C-contiguous.

        Returns:
            float32 ``[rows]``.
        """

    def predict(self, indices: Array, dense: Array) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``; see ``logits``."""

    def explain(self, indices: Array, dense: Array) -> list[list[Contribution]]:
        """Return each field's contribution to each row's logit; a row's contributions sum to its logit."""


class LearningModel(abc.ABC):
    """A click model that learns. Called by one thread at a time.

    Attributes:
        settings: The model's settings.
        features: Layout of the rows.
    """

    settings: ModelSettings
    features: Features

    @abc.abstractmethod
    def learn(self, block: Block) -> Array:
        """Predict the rows of a block, then learn from them.

        An online model learns from each row before it predicts the next. The others predict the whole block
        before they learn from it.

        Args:
            block: The rows, with labels.

        Returns:
            The probabilities, each predicted before the model learnt from its row: float32 ``[rows]``.
        """

    @abc.abstractmethod
    def predict(self, block: Block) -> Array:
        """Return click probabilities: float32 ``[rows]``, bit-identical to a Scorer of ``strip()``."""

    def forget(self, rows: Array) -> None:
        """Reinitialise rows of the tables whose values have expired.

        Args:
            rows: Row numbers: int64, distinct, below ``features.rows``.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning, by name: the model's own arrays, not copies."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the state of a model of the same settings and features.

        Raises:
            ConfigError: An array is missing or has another shape.
        """

    @abc.abstractmethod
    def strip(self) -> Weights:
        """Return a copy of the weights without the optimizers' state."""
