"""Adam for Keras that updates only the embedding rows that occur in a batch.

Keras' own Adam decays the moments of every row of every table at every batch, and moves every row by them.
With a million rows and a thousand values a batch, that takes nearly all of the time. Here, rows without a
gradient keep their moments, and their weights unless ``weight_decay`` is set; the others move by Keras'
formula. Requires the extra ``tensorflow``.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow

_Tensor = Any  # TensorFlow ships no types
_Variable = Any


class LazyAdam(keras.optimizers.Adam):  # type: ignore[misc]  # Keras ships no types
    """Adam that leaves rows without a gradient, and their moments, unchanged, except by ``weight_decay``."""

    def __init__(self, learning_rate: float = 0.001, **settings: object) -> None:
        """Create an optimizer.

        Args:
            learning_rate: The learning rate.
            settings: As for ``keras.optimizers.Adam``, except ``amsgrad``, which is not supported.

        Raises:
            ValueError: ``amsgrad`` is set.
        """
        super().__init__(learning_rate, **settings)
        if self.amsgrad:
            raise ValueError(
                "amsgrad: LazyAdam does not support it; leave it out, or use keras.optimizers.Adam"
            )

    def update_step(self, gradient: _Tensor, variable: _Variable, learning_rate: _Tensor) -> None:
        """Update one variable; called by Keras.

        Args:
            gradient: Gradient of the whole variable, or of some rows, each of which may occur repeatedly.
            variable: The variable.
            learning_rate: The learning rate.
        """
        if not isinstance(gradient, tensorflow.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rows, slots = tensorflow.unique(gradient.indices)
        total = tensorflow.math.unsorted_segment_sum(gradient.values, slots, tensorflow.size(rows))
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        step = tensorflow.cast(self.iterations + 1, variable.dtype)
        # Read only these rows: once rows have been written, reading a whole variable copies it.
        moment = _variable(first).sparse_read(rows)
        moment += (total - moment) * (1 - self.beta_1)
        velocity = _variable(second).sparse_read(rows)
        velocity += (tensorflow.square(total) - velocity) * (1 - self.beta_2)
        factor = tensorflow.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        move = tensorflow.cast(learning_rate, variable.dtype) * factor
        change = moment * move / (tensorflow.sqrt(velocity) + self.epsilon)
        for target, values in ((first, moment), (second, velocity)):
            self.assign(target, tensorflow.IndexedSlices(values, rows))
        self.assign_sub(variable, tensorflow.IndexedSlices(change, rows))


def _variable(variable: _Variable) -> _Variable:
    """Return the TensorFlow variable behind a Keras or TensorFlow variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable
