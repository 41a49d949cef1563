"""The two forms of a click model: one that learns, and one that only predicts.

Both predict from the same arrays, through ``headrace.ctr.serving.scoring``. A LearningModel also has its
optimizers' state. Servers predict with ``headrace.ctr.serving.context``, and use a Scorer for explanations.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.base.tensors import Array
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.tables import Table
from headrace.stream.block import Block
from headrace.stream.features import Features


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
            (deepfm, mdn), or the dot products of the field pairs in order of (first, second) (deepffm), then
            the dense features. In an mdn, a flag for each vector field follows the dense features, and the
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
