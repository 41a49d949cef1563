"""Models with exact fields: a vocabulary assigns rows to values, and another model learns from the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.interfaces import LearningModel, Weights
from headrace.ctr.models.vocabulary import Vocabulary
from headrace.stream.block import Block


class AdmittingModel(LearningModel):
    """A model with exact fields: a vocabulary in front of another model."""

    def __init__(self, inner: LearningModel) -> None:
        """Wrap a model.

        Args:
            inner: An untrained model with exact fields.
        """
        self.settings, self.features = inner.settings, inner.features
        self._inner = inner
        self._vocabulary = Vocabulary(inner.features)
        self._position = np.zeros(1, np.int64)

    def learn(self, block: Block) -> Array:
        """Admit new values, predict the rows, then learn from them."""
        filled, taken = self._vocabulary.admit(block)
        if len(taken):
            self._inner.forget(taken)
        self._position[0] = block.first_row + len(block)
        return self._inner.learn(filled)

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        return self._inner.predict(self._vocabulary.look_up(block, int(self._position[0])))

    def forget(self, rows: Array) -> None:
        """Reinitialise rows of the tables."""
        self._inner.forget(rows)

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning, including the vocabulary's."""
        return {**self._inner.state(), **self._vocabulary.state(), "vocabulary.position": self._position}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        if "vocabulary.position" not in state:
            raise ConfigError(
                "vocabulary.position is missing from the state, which is that of a model without exact fields"
            )
        self._vocabulary.restore(state)
        self._inner.restore(
            {name: array for name, array in state.items() if not name.startswith("vocabulary.")}
        )
        self._position[:] = state["vocabulary.position"]

    def strip(self) -> Weights:
        """Return a copy of the weights, with the keys of values that have not expired."""
        return replace(self._inner.strip(), keys=self._vocabulary.living_keys(int(self._position[0])))
