"""A model whose answers name the classes with the highest scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.base.errors import ModelError, NotLoadable, listed
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPLAIN_SIGNATURE,
    Servable,
    Signature,
    TensorSpec,
    takes_packed,
)

LABEL, SCORE = "label", "score"
"""Names of the outputs that are added."""

_USUAL_NAME = "scores"


class LabelledServable:
    """A model, and the names of its classes.

    Attributes:
        platform: Platform of the model.
        signatures: Signatures of the model; those with scores have ``label`` (BYTES) and ``score`` besides,
            ``[rows]`` for one class, else ``[rows, top]``, the highest first.
        may_block: Whether a call of the model may wait.
        is_native: Whether the model computes without the GIL.
        takes_packed: Whether the model accepts packed texts.
    """

    def __init__(self, servable: Servable, scores: str, labels: Sequence[str], top: int) -> None:
        """Name the classes of a model.

        Args:
            servable: The model; closed with this object.
            scores: The output with the scores; "" for ``scores``, or else the first of floats
                ``[rows, classes]``, or else the only output. With two labels it may be of floats ``[rows]``:
                the probability of the second class.
            labels: Names of the classes, in the order of the scores.
            top: Number of classes that an answer names, 1 or more.

        Raises:
            NotLoadable: There is no such output, it has another number of classes, or the model has outputs
                of the added names.
        """
        self._model = servable
        self._labels = np.array([*(label.encode() for label in labels), None], object)[:-1]
        self._top = top
        if top > len(labels):
            raise NotLoadable(f"signature.top: expected at most {len(labels)}, one per label, got {top}")
        self.platform = servable.platform
        self.may_block: bool = getattr(servable, "may_block", False)
        self.is_native: bool = getattr(servable, "is_native", False)
        self.takes_packed = takes_packed(servable)
        self._scores = _checked_scores(servable.signatures[DEFAULT_SIGNATURE], scores, len(labels))
        self._named = {  # an output of an explanation has the name of an input, possibly that of the scores
            name
            for name, one in servable.signatures.items()
            if self._scores.name in one.output_names and name != EXPLAIN_SIGNATURE
        }
        self.signatures: Mapping[str, Signature] = {
            name: self._public(one) if name in self._named else one
            for name, one in servable.signatures.items()
        }

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Run the model, and name the classes with the highest scores.

        Args:
            inputs: As the model takes them.
            signature: Name of the signature.

        Returns:
            The model's outputs; and ``label`` and ``score``.

        Raises:
            ModelError: The model returned another number of scores than there are labels.
        """
        outputs = self._model.predict(inputs, signature)
        if signature not in self._named:
            return outputs
        scores = by_class(self._scores, outputs[self._scores.name], len(self._labels))
        if scores.ndim != 2 or scores.shape[1] != len(self._labels):
            got = f"{self._scores.name} {list(scores.shape)}"
            raise ModelError(f"expected {len(self._labels)} scores per row, one per label, got {got}")
        best = highest(scores, self._top)
        if self._top == 1:
            best = best[:, 0]
            return {**outputs, LABEL: self._labels[best], SCORE: scores[np.arange(len(scores)), best]}
        return {**outputs, LABEL: self._labels[best], SCORE: np.take_along_axis(scores, best, axis=1)}

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _public(self, signature: Signature) -> Signature:
        shape = () if self._top == 1 else (self._top,)
        for name in (LABEL, SCORE):
            if name in signature.output_names:
                problem = f"the model has an output {name!r} of its own"
                raise NotLoadable(f"signature.top: {problem}; rename or leave out that output, or top")
        added = TensorSpec(LABEL, STRING, shape), TensorSpec(SCORE, self._scores.dtype, shape)
        return replace(signature, outputs=(*signature.outputs, *added))


def highest(scores: Array, count: int) -> Array:
    """Return the columns with the highest scores in each row, the highest first; NaN counts as lowest.

    Args:
        scores: Floats ``[rows, classes]``.
        count: Number of columns.

    Returns:
        int64 ``[rows, count]``; of equal scores, the earlier column comes first.
    """
    known: Array = np.where(np.isnan(scores), -np.inf, scores)
    if count == 1:
        best: Array = known.argmax(axis=1)
        return best[:, None]
    ranked: Array = np.argsort(-known, axis=1, kind="stable")
    return ranked[:, :count]


def scores_output(outputs: Sequence[TensorSpec], classes: int) -> TensorSpec | None:
    """Return the output with the scores of a model that does not name it, if there is one.

    Args:
        outputs: The model's outputs.
        classes: Number of named classes; 0 if they have no names.

    Returns:
        The first of floats ``[rows, classes]``; or the only one, if it is the probability of the second of
        two classes.
    """
    found = next(filter(is_scores, outputs), None)
    if found is None and len(outputs) == 1 and is_of_two(outputs[0], classes):
        return outputs[0]
    return found


def is_scores(spec: TensorSpec) -> bool:
    """Return whether an output is of floats ``[rows, classes]``."""
    return spec.dtype.kind == "f" and len(spec.shape) == 1


def is_of_two(spec: TensorSpec, classes: int) -> bool:
    """Return whether an output is the probability of the second of two classes, as of boosted trees."""
    return classes == 2 and spec.dtype.kind == "f" and not spec.shape


def by_class(spec: TensorSpec, scores: Array, classes: int) -> Array:
    """Return scores ``[rows, classes]``.

    Args:
        spec: The output with the scores.
        scores: Its values; of two classes, perhaps the probabilities of the second one only.
        classes: Number of named classes.
    """
    return np.stack([1 - scores, scores], axis=-1) if is_of_two(spec, classes) else scores


def _checked_scores(signature: Signature, name: str, classes: int) -> TensorSpec:
    """Return the output with the scores of so many classes.

    Raises:
        NotLoadable: There is none, or it has another number of classes.
    """
    named = {spec.name: spec for spec in signature.outputs}
    found = named.get(name or _USUAL_NAME) or (None if name else scores_output(signature.outputs, classes))
    if found is not None and is_of_two(found, classes):
        return found
    if found is None or not is_scores(found):
        shape = "[rows, classes], or [rows] for two classes" if classes == 2 else "[rows, classes]"
        expected = f"an output of floats {shape}, one of {listed(signature.outputs)}"
        raise NotLoadable(f"signature.scores: expected {expected}, got {name!r}")
    if found.shape[0] not in (None, classes):
        raise NotLoadable(
            f"signature.labels: expected {found.shape[0]} names, one per class of {found.name}, got {classes}"
        )
    return found
