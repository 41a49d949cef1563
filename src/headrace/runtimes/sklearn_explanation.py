"""The signature ``explain`` of linear models of scikit-learn: coefficient times value, by input.

Values are those after preprocessing. The contributions of all features that are made of one column, such as
those of a one-hot encoding, are summed. Preprocessing that mixes columns (PCA, Normalizer, polynomial
features) cannot be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder

from headrace.base.tensors import Array, Tensors
from headrace.model.servable import EXPECTED_VALUE, EXPLAIN_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.sklearn_inputs import Estimator, Features, positions

_FLOAT64 = np.dtype(np.float64)


class LinearExplanation:
    """Explanations of a linear model behind preprocessing that keeps columns apart.

    Attributes:
        signature: The signature.
    """

    def __init__(
        self, estimator: Estimator, features: Features, columns: Sequence[int], sample: Array | list[str]
    ) -> None:
        """Describe the explanation.

        Args:
            estimator: The fitted estimator, prepared for arrays.
            features: Its inputs.
            columns: For each preprocessed value, the column of the estimator's matrix that it comes from.
            sample: Rows of that matrix, or documents.

        Raises:
            ValueError: The sums of the sample's contributions are not the raw scores.
        """
        final = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
        has_steps = isinstance(estimator, Pipeline) and len(estimator.steps) > 1
        self._preprocess: Callable[[Any], Any] = estimator[:-1].transform if has_steps else _same
        weights = _weights(final)
        self._expected = np.atleast_1d(np.asarray(final.intercept_, np.float64))
        self._scores = len(weights)
        places = features.places or range(1 if features.documents else features.specs[0].shape[0] or 0)
        of_column: dict[int, list[int]] = {place: [] for place in places}
        for index, column in enumerate(columns):
            of_column[column].append(index)
        self._parts = [(indices, weights[:, indices].T) for indices in of_column.values()]
        self._whole = not features.places and not features.documents
        axes = (self._scores,) if self._scores > 1 else ()
        shape = (len(self._parts), *axes) if self._whole else axes
        outputs = [TensorSpec(spec.name, _FLOAT64, shape) for spec in features.specs]
        outputs.append(TensorSpec(EXPECTED_VALUE, _FLOAT64, axes))
        self.signature = Signature(EXPLAIN_SIGNATURE, features.specs, tuple(outputs), sample=features.sample)
        raw = getattr(final, "decision_function", final.predict)(self._preprocess(sample))
        added = sum(self._contributions(sample), self._expected)
        if not np.allclose(added.reshape(np.shape(raw)), raw, rtol=1e-6):
            raise ValueError("the model's raw score is not a sum over its columns")

    def outputs(self, given: Any) -> Tensors:
        """Return the outputs.

        Args:
            given: Rows of the estimator's matrix, or documents.
        """
        contributions: list[Array] = self._contributions(given)
        expected = np.tile(self._expected, (len(contributions[0]), 1))
        if self._scores == 1:
            contributions, expected = [one[:, 0] for one in contributions], expected[:, 0]
        if self._whole:
            contributions = [np.stack(contributions, axis=1)]
        return dict(zip(self.signature.output_names, [*contributions, expected], strict=True))

    def _contributions(self, given: Any) -> list[Array]:
        """Return what each column adds to the raw scores: FP64 ``[rows, scores]``."""
        values = self._preprocess(given)
        if hasattr(values, "tocsc"):
            values = values.tocsc()
        return [np.asarray(values[:, indices] @ weights, np.float64) for indices, weights in self._parts]


def _same(given: Any) -> Any:
    return given


def columns_of(estimator: Estimator, features: Features) -> list[int] | None:
    """Return the column from which each preprocessed value of a linear model is made; None if unknown.

    Args:
        estimator: The fitted estimator, before it is prepared for arrays.
        features: Its inputs.
    """
    steps = [one for _, one in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]
    if not (hasattr(steps[-1], "coef_") and hasattr(steps[-1], "intercept_")):
        return None
    if any(size is None for spec in features.specs for size in spec.shape):
        return None
    if any(spec.name == EXPECTED_VALUE for spec in features.specs):
        return None
    if features.documents:
        return [0] * _weights(steps[-1]).shape[1]
    columns: list[int] | None = list(range(features.width or features.specs[0].shape[0] or 0))
    for step in steps[:-1]:
        columns = _after(step, columns)
    return columns


def _after(step: Any, columns: list[int] | None) -> list[int] | None:
    """Return the column from which each output of a transformer is made, given those of its inputs."""
    if columns is None or isinstance(step, str) or step is None:  # "passthrough"
        return columns
    if isinstance(step, Pipeline):
        for _, one in step.steps:
            columns = _after(one, columns)
        return columns
    if isinstance(step, ColumnTransformer):
        return _after_each(step, columns)
    if isinstance(step, OneHotEncoder):
        dropped = [None] * len(columns) if step.drop_idx_ is None else step.drop_idx_
        counts = [len(one) - (drop is not None) for one, drop in zip(step.categories_, dropped, strict=True)]
        found = [column for column, count in zip(columns, counts, strict=True) for _ in range(count)]
        return found if len(found) == _width(step) else None
    is_apart = isinstance(step, OneToOneFeatureMixin) and not _normalises(step)
    if is_apart or (isinstance(step, SimpleImputer) and _width(step) == len(columns)):
        return columns
    width = _width(step)
    return [columns[0]] * width if len(columns) == 1 and width is not None else None


def _normalises(step: Any) -> bool:
    """Return whether a transformer divides each row by its norm, so that each value depends on all."""
    return isinstance(step, Normalizer) or (isinstance(step, TfidfTransformer) and step.norm is not None)


def _after_each(step: ColumnTransformer, columns: list[int]) -> list[int] | None:
    made: dict[int, int] = {}
    for name, transformer, chosen in step.transformers_:
        where = step.output_indices_[name]
        if where.start == where.stop:
            continue
        picked = np.asarray(columns)[positions(step, chosen)]
        found = _after(transformer, np.atleast_1d(picked).tolist())
        if found is None or len(found) != where.stop - where.start:
            return None
        made |= dict(zip(range(where.start, where.stop), found, strict=True))
    return [made[index] for index in range(len(made))]


def _weights(final: Any) -> Array:
    """Return a linear model's coefficients ``[scores, columns]``; SVC's are sparse if its data were."""
    found = final.coef_
    return np.atleast_2d(found.toarray() if hasattr(found, "toarray") else found)


def _width(step: Any) -> int | None:
    try:
        return len(step.get_feature_names_out())
    except (AttributeError, ValueError):
        return None
