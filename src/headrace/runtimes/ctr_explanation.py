"""The signature ``explain`` of click models: what each field adds to the logit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.base.tensors import Array, Tensors
from headrace.model.servable import EXPECTED_VALUE, EXPLAIN_SIGNATURE, Signature, TensorSpec

_FLOAT64 = np.dtype(np.float64)


class ClickExplanation:
    """The outputs of an explanation: one per field, and ``expected_value`` for the rest of the logit.

    Attributes:
        signature: The signature.
    """

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        """Describe the explanation of a model.

        Args:
            inputs: One input per field, in the order of its layout.
        """
        names = [*(spec.name for spec in inputs), EXPECTED_VALUE]
        outputs = tuple(TensorSpec(name, _FLOAT64, ()) for name in names)
        self.signature = Signature(EXPLAIN_SIGNATURE, tuple(inputs), outputs)

    def outputs(self, effects: Array) -> Tensors:
        """Return the outputs.

        Args:
            effects: The contributions to the logits, as ``FieldEffects.of`` returns it.
        """
        return {name: effects[:, column] for column, name in enumerate(self.signature.output_names)}
