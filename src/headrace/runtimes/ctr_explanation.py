"""The signature ``explain`` of click models: what each field adds to the logit.

The two fields of a pair share its term equally, which is its Shapley value: a pair adds nothing without both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.base.tensors import Array, Tensors
from headrace.ctr.interfaces import Contribution
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.interactions import interaction_name
from headrace.ctr.models.missing import flag_name
from headrace.ctr.serving.explanations import BIAS
from headrace.model.servable import EXPECTED_VALUE, EXPLAIN_SIGNATURE, Signature, TensorSpec
from headrace.stream.features import Features

_FLOAT64 = np.dtype(np.float64)


class ClickExplanation:
    """The outputs of an explanation: one per field, and ``expected_value`` for the rest of the logit.

    Attributes:
        signature: The signature.
    """

    def __init__(self, settings: ModelSettings, features: Features, inputs: Sequence[TensorSpec]) -> None:
        """Describe the explanation of a model.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            inputs: One input per field.
        """
        names = [*(spec.name for spec in inputs), EXPECTED_VALUE]
        outputs = tuple(TensorSpec(name, _FLOAT64, ()) for name in names)
        self.signature = Signature(EXPLAIN_SIGNATURE, tuple(inputs), outputs)
        columns = {name: column for column, name in enumerate(names)}
        self._columns: dict[str, tuple[int, ...]] = {name: (column,) for name, column in columns.items()}
        self._columns |= {flag_name(name): (column,) for name, column in columns.items()}
        self._columns[BIAS] = (columns[EXPECTED_VALUE],)
        fields = [field.name for field in features.categorical]
        for first, second in ((one, other) for one in fields for other in fields):
            self._columns[f"{first} * {second}"] = columns[first], columns[second]
        for interaction in settings.interactions:
            self._columns[interaction_name(interaction)] = tuple(columns[name] for name in interaction.fields)

    def outputs(self, rows: Sequence[Sequence[Contribution]]) -> Tensors:
        """Return the outputs.

        Args:
            rows: The contributions to each row's logit, as ``Scorer.explain`` returns them.
        """
        sums: Array = np.zeros((len(rows), len(self.signature.outputs)))
        for row, contributions in enumerate(rows):
            for one in contributions:
                columns = self._columns[one.field]
                for column in columns:
                    sums[row, column] += one.contribution / len(columns)
        return {name: sums[:, column] for column, name in enumerate(self.signature.output_names)}
