"""CatBoost models, ``model.cbm``, as ``CatBoost.save_model`` writes them.

Columns of categories or texts take texts, even if the categories were numbers. Outputs: ``label`` and
``probabilities`` of classifiers, ``prediction`` of others. Needs the extra ``catboost``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost
import numpy as np

from headrace.base.errors import LoadError, ModelError, NotLoadable
from headrace.base.tensors import BY_DTYPE, STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.tree_models import OPTIONS, Columns, TreeInputs, explanation_of, signatures_with

_KINDS = {
    "Poisson": "Exponent",
    "Tweedie": "Exponent",
    "RMSEWithUncertainty": "RMSEWithUncertainty",
    "MultiLogloss": "Probability",
    "MultiCrossEntropy": "Probability",
}
"""CatBoost's kind of prediction by the loss, as its estimators choose it; "RawFormulaVal" for others."""


def load(file: Path, options: RuntimeOptions) -> CatboostServable:
    """Load a model.

    Args:
        file: A binary file of CatBoost.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: CatBoost refuses the file, or the model needs inputs that no request can carry.
    """
    options.check_known(OPTIONS)
    model = catboost.CatBoost()
    try:
        model.load_model(str(file))
        if model.get_embedding_feature_indices():
            raise NotLoadable(
                "the model has features of embeddings, which no request can carry; leave them out"
            )
        return CatboostServable(model, options)
    except LoadError:
        raise
    except Exception as error:  # the boundary to CatBoost, which also passes on errors of decoding
        said = _text(error).replace(str(file), file.name)
        raise LoadError(f"CatBoost cannot read {file.name}: {said}") from error


class CatboostServable:
    """A model of CatBoost."""

    platform = "catboost"

    def __init__(self, model: catboost.CatBoost, options: RuntimeOptions) -> None:
        """Describe a model.

        Args:
            model: The model.
            options: The operator's settings.

        Raises:
            NotLoadable: An option does not fit the model.
        """
        self._model = model
        self._threads = options.threads
        loss = _loss(model)
        self._labels, labels = _labels([] if loss in _KINDS else model.classes_)
        self._kind = "Probability" if len(self._labels) else _KINDS.get(loss, "RawFormulaVal")
        self._pool = {
            "cat_features": model.get_cat_feature_indices(),
            "text_features": model.get_text_feature_indices(),
        }
        texts = frozenset(index for one in self._pool.values() for index in one)
        names = tuple(map(str, model.feature_names_))
        is_named = bool(texts) or names != tuple(map(str, range(len(names))))
        self._inputs = TreeInputs(Columns(len(names), names if is_named else None, {}, texts), options)
        probabilities = TensorSpec("probabilities", np.dtype(np.float64), (len(self._labels),))
        if len(self._labels):
            outputs: tuple[TensorSpec, ...] = (TensorSpec("label", labels, ()), probabilities)
        else:
            shape = self._predicted(self._row(), self._kind).shape[1:]
            outputs = (TensorSpec("prediction", np.dtype(np.float64), shape),)
        kind = options.signature.kind
        if kind == "predict" and (len(self._labels) or not outputs[0].shape):
            kind = "classify" if len(self._labels) else "regress"
        signature = Signature(DEFAULT_SIGNATURE, self._inputs.specs, outputs, kind=kind)
        self._explanation = explanation_of(self._inputs, self._contributions, self._raw_scores)
        self.signatures = signatures_with(signature, self._explanation)

    def _row(self) -> Tensors:
        return {
            spec.name: np.full(
                (1, *(size or 1 for size in spec.shape)), b"" if spec.dtype == STRING else 0, spec.dtype
            )
            for spec in self._inputs.specs
        }

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict or explain a whole batch.

        Args:
            inputs: Every input, checked.
            signature: The name of the signature.

        Raises:
            InvalidRequest: A text is not UTF-8.
            ModelError: CatBoost failed.
        """
        if self._explanation is not None and signature == EXPLAIN_SIGNATURE:
            return self._explanation.outputs(self._contributions, inputs)
        answer = self._predicted(inputs, self._kind)
        if not len(self._labels):
            return {"prediction": answer}
        return {"label": self._labels[answer.argmax(axis=1)], "probabilities": answer}

    def _raw_scores(self, inputs: Tensors) -> Array:
        return self._predicted(inputs, "RawFormulaVal")

    def _predicted(self, inputs: Tensors, kind: str) -> Array:
        matrix = self._inputs.join(inputs)
        try:
            answer = self._model.predict(matrix, prediction_type=kind, thread_count=self._threads)
        except catboost.CatBoostError as error:
            raise ModelError(f"CatBoost failed: {_text(error)}") from error
        return np.asarray(answer, np.float64)

    def _contributions(self, inputs: Tensors) -> Array:
        """Return what each column adds: FP64 ``[rows, columns + 1]``, or ``[rows, scores, columns + 1]``."""
        try:
            pool = catboost.Pool(self._inputs.join(inputs), **self._pool)
            found = self._model.get_feature_importance(pool, type="ShapValues", thread_count=self._threads)
        except catboost.CatBoostError as error:
            raise ModelError(f"CatBoost failed: {_text(error)}") from error
        return np.asarray(found, np.float64)

    def close(self) -> None:
        """Free the model."""
        del self._model


def _loss(model: catboost.CatBoost) -> str:
    """Return the name of the loss that a model was fitted with; empty if it is a sum of models."""
    try:
        return str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    except catboost.CatBoostError:  # sum_models stores no parameters
        return ""


def _labels(of_model: Any) -> tuple[Array, np.dtype[Any]]:
    """Return a classifier's classes as labels, and their dtype."""
    classes = np.asarray(of_model)
    if classes.dtype.kind in "OUS" and all(isinstance(one, str) for one in classes):
        return np.array([one.encode() for one in classes], object), STRING
    numbers = np.array(classes.tolist())
    if numbers.dtype not in BY_DTYPE and len(numbers):
        raise NotLoadable(f"the model's classes are {numbers.dtype}, which no answer can carry")
    return numbers, numbers.dtype


def _text(error: Exception) -> str:
    """Return CatBoost's text without its source file."""
    said = " ".join(str(error).split())
    first, _, rest = said.partition(": ")
    return rest if rest and ".cpp:" in first else said
