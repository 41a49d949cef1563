"""The two forms of a click model: one that learns, and the stripped one that serves.

Both predict over the same arrays, through ``headrace.ctr.serving.scoring``; a LearningModel has, besides, its
optimizers' state.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.ctr.settings import ModelSettings
from headrace.ctr.tables import Table
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.tensors import Array


@dataclass(frozen=True)
class Weights:
    """All that a prediction depends on.

    Attributes:
        tables: ``linear`` ``[rows + interaction buckets, 1]`` and, but for lr, ``embeddings``
            ``[rows, factors]`` (ffm and deepffm: ``[rows, fields * factors]``). Interactions' weights lie
            behind the tables' rows, in the order of the settings.
        dense: Everything else, by name, float32: ``bias`` ``[1]``; ``dense`` ``[dense_width]``, the linear
            weights of dense features; ``pairs`` ``[fields, fields]`` (fwfm, upper triangle); the network's
            ``layer0.weights`` ``[inputs, units]``, ``layer0.bias`` ``[units]``, … , the last one with one
            unit. The inputs of a network are the pooled embeddings of the fields one after the other
            (deepfm, mdn), or the dot products of the field pairs in order of (first, second) (deepffm), then
            the dense features; an mdn's have a flag for each vector field behind them, and its last layer a
            unit for each of its heads (``headrace.ctr.models.density``).
        keys: Whose each row of an exact field's table is, by the table's name: uint64 ``[buckets]``; see
            ``headrace.ctr.models.vocabulary``.
    """

    tables: Mapping[str, Table]
    dense: Mapping[str, Array]
    keys: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one field adds to a row's logit.

    Attributes:
        field: The field's name, a pair's as ``a * b``, or ``(bias)``.
        index: The row of the table, or -1.
        value: The dense feature's value; 1.0 for a category.
        weight: The linear weight, or the effective one.
        contribution: What is added to the logit.
    """

    field: str
    index: int
    value: float
    weight: float
    contribution: float


class Scorer(Protocol):
    """A click model that only predicts. Immutable; may be called by many threads at once."""

    settings: ModelSettings
    features: Features
    weights: Weights

    def logits(self, indices: Array, dense: Array) -> Array:
        """The logits of rows.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``, C-contiguous, all below ``features.rows``.
            dense: Dense features: float32 ``[rows, dense_width]``, C-contiguous.

        Returns:
            float32 ``[rows]``.
        """

    def predict(self, indices: Array, dense: Array) -> Array:
        """The probabilities of a click: float32 ``[rows]``; see ``logits``."""

    def explain(self, indices: Array, dense: Array) -> list[list[Contribution]]:
        """What each field adds to each row's logit; a row's contributions add up to its logit."""


class LearningModel(abc.ABC):
    """A click model that learns. Called by one thread at a time.

    Attributes:
        settings: What it is.
        features: The layout of the rows that it is given.
    """

    settings: ModelSettings
    features: Features

    @abc.abstractmethod
    def learn(self, block: Block) -> Array:
        """Predict the rows of a block, then learn from them.

        A model that is online predicts each row after it has learnt from those before it; the others predict
        all rows of the block first.

        Args:
            block: The rows, with labels.

        Returns:
            The probabilities that were predicted before the labels were looked at: float32 ``[rows]``.
        """

    @abc.abstractmethod
    def predict(self, block: Block) -> Array:
        """The probabilities of a click: float32 ``[rows]``, to the bit what ``strip()`` would answer."""

    def forget(self, rows: Array) -> None:
        """Make rows of the tables fresh: what they held belonged to values that are gone.

        Args:
            rows: Their numbers: int64, distinct, below ``features.rows``.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from, by name: the model's own arrays, not copies."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state that a model of the same settings and features had.

        Raises:
            ConfigError: An array is missing or of another shape.
        """

    @abc.abstractmethod
    def strip(self) -> Weights:
        """A copy of what predictions depend on, without the optimizers' state."""
