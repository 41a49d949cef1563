"""Adam for Keras that touches only the rows of an embedding that a batch had values of.

Keras' own Adam decays the moments of every row of every table at every batch, and moves every row by what is
left of them: with a million rows and a thousand values a batch that is all of its time. Here, rows without a
gradient keep their weights and moments to the bit, and the others move exactly as Keras would move them.
Needs the extra ``tensorflow``.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow

_Tensor = Any  # TensorFlow ships no types
_Variable = Any


class LazyAdam(keras.optimizers.Adam):  # type: ignore[misc]  # Keras ships no types
    """Adam whose moments of rows stay as they are while the rows have no gradient."""

    def __init__(self, learning_rate: float = 0.001, **settings: object) -> None:
        """Make an optimizer.

        Args:
            learning_rate: How far.
            settings: As for ``keras.optimizers.Adam``; ``amsgrad`` is the one that cannot be.

        Raises:
            ValueError: AMSGrad is wanted.
        """
        super().__init__(learning_rate, **settings)
        if self.amsgrad:
            raise ValueError("amsgrad: LazyAdam has none; leave it out, or take keras.optimizers.Adam")

    def update_step(self, gradient: _Tensor, variable: _Variable, learning_rate: _Tensor) -> None:
        """Move one variable; called by Keras.

        Args:
            gradient: Of the whole variable, or of some rows, each as often as the batch had it.
            variable: What moves.
            learning_rate: How far.
        """
        if not isinstance(gradient, tensorflow.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rows, slots = tensorflow.unique(gradient.indices)
        total = tensorflow.math.unsorted_segment_sum(gradient.values, slots, tensorflow.size(rows))
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        step = tensorflow.cast(self.iterations + 1, variable.dtype)
        # Only some rows are read: once rows have been written, reading a whole variable copies it.
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
    """TensorFlow's own variable, of Keras' or of itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable
