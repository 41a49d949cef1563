"""Models with exact fields: values are given rows of their own before another model learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headrace.ctr.interfaces import LearningModel, Weights
from headrace.ctr.models.vocabulary import Vocabulary
from headrace.errors import ConfigError
from headrace.stream.block import Block
from headrace.tensors import Array


class AdmittingModel(LearningModel):
    """A model with exact fields: another model behind a vocabulary."""

    def __init__(self, inner: LearningModel) -> None:
        """Put a vocabulary before a model.

        Args:
            inner: A fresh model, some of whose fields are exact.
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
        """The probabilities of a click: float32 ``[rows]``."""
        return self._inner.predict(self._vocabulary.look_up(block, int(self._position[0])))

    def forget(self, rows: Array) -> None:
        """Make rows of the tables fresh."""
        self._inner.forget(rows)

    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from."""
        return {**self._inner.state(), **self._vocabulary.state(), "vocabulary.position": self._position}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: An array is missing or of another shape.
        """
        if "vocabulary.position" not in state:
            raise ConfigError(
                "vocabulary.position is not in the state; it is that of a model without exact fields"
            )
        self._vocabulary.restore(state)
        self._inner.restore(
            {name: array for name, array in state.items() if not name.startswith("vocabulary.")}
        )
        self._position[:] = state["vocabulary.position"]

    def strip(self) -> Weights:
        """A copy of what predictions depend on, with the keys of values that have not expired."""
        return replace(self._inner.strip(), keys=self._vocabulary.living_keys(int(self._position[0])))
