"""Classify and Regress: Examples become inputs by their features' names, outputs become classes or values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.batching.request import Answer, WholeAnswer
from headrace.errors import FailedPrecondition, InvalidRequest, ModelError
from headrace.frontends.tfserving.columns import Column
from headrace.frontends.wire import long_lists
from headrace.frontends.wire.steps import Steps
from headrace.servable import Kind, Signature, TensorSpec
from headrace.tensors import STRING, Array

if TYPE_CHECKING:
    from headrace.config import SignatureConfig
    from headrace.frontends.wire.allowance import Allowance

Values = list[Any]
Features = dict[str, Values]
"""One Example: the values of its features, each a list of one kind."""

_EXAMPLES_A_STEP = 256

# The outputs' names in signatures that TensorFlow's estimators export.
_SCORES, _CLASSES, _VALUE = "scores", "classes", "outputs"


def columns_of(
    signature: Signature, examples: list[Features], allowance: Allowance
) -> Steps[dict[str, Array]]:
    """Make columns of examples; features that are no inputs are left out, as in TensorFlow.

    Where something stands for a value that is not there, an example may lack the feature.

    Args:
        signature: The inputs that are wanted.
        examples: One row each; used up.
        allowance: What the request may cost.

    Raises:
        InvalidRequest: A feature is missing, or of the wrong kind or number.
        TooLarge: With what is put in, they are more than a request may have.
    """
    columns = [Column(spec, allowance) for spec in signature.inputs]
    count = 0
    for part in long_lists.parts(examples, _EXAMPLES_A_STEP):
        for index, example in enumerate(part, count):
            for column in columns:
                column.add(index, example.get(column.spec.name))
        count += len(part)
        yield
    return {column.spec.name: column.array(count) for column in columns}


# ---- Results ----


class Classes(NamedTuple):
    """What Classify answers.

    Attributes:
        scores: [rows, classes].
        names: A name for each score: [rows, classes], or [1, classes] where all rows have the same.
    """

    scores: Array
    names: Array

    def texts(self, rows: slice) -> list[list[str]]:
        """The names of some rows' scores."""
        if len(self.names) == 1:
            return [[_text(name) for name in self.names[0]]] * len(self.scores[rows])
        return [[_text(name) for name in row] for row in self.names[rows].tolist()]


def check_kind(signature: Signature, wanted: Kind) -> None:
    """Refuse to classify with a regression, or the other way round.

    Raises:
        InvalidRequest: The signature is of the other kind.
    """
    if signature.kind not in ("predict", wanted):
        raise InvalidRequest(
            f"signature {signature.name!r} is for {signature.kind}, not for {wanted}", field="signature_name"
        )


def class_outputs(
    signature: Signature, settings: SignatureConfig
) -> tuple[TensorSpec | None, TensorSpec | None]:
    """Choose the outputs that Classify answers from: the scores, the classes' names, or both.

    Args:
        signature: What the model gives.
        settings: What the operator says about it.

    Returns:
        The output of the scores and that of the names; one of them may be None.

    Raises:
        FailedPrecondition: None fits, or the one that is named does not.
    """
    scores = _chosen(signature, settings.scores, _SCORES) or next(filter(_is_scores, signature.outputs), None)
    classes = None if settings.labels else _chosen(signature, settings.classes, _CLASSES)
    classes = None if classes is scores else classes
    if classes is not None and (classes.dtype.kind == "f" or len(classes.shape) != 1):
        raise _no_output(signature, "classes", "of texts [rows, classes]", classes)
    if (scores is None and classes is None) or (scores is not None and not _is_scores(scores)):
        raise _no_output(signature, "scores", "of floats [rows, classes]", scores)
    return scores, classes


def _is_scores(spec: TensorSpec) -> bool:
    return spec.dtype.kind == "f" and len(spec.shape) == 1


def value_output(signature: Signature, settings: SignatureConfig) -> TensorSpec:
    """Choose the output that Regress answers from.

    Args:
        signature: What the model gives.
        settings: What the operator says about it.

    Raises:
        FailedPrecondition: None fits, or more than one does.
    """
    named = _chosen(signature, settings.scores, _VALUE)
    fitting = [spec for spec in ([named] if named else signature.outputs) if _is_value(spec)]
    if len(fitting) != 1:
        raise _no_output(signature, "the value", "of floats [rows] or [rows, 1], and only one,", named)
    return fitting[0]


def _is_value(spec: TensorSpec) -> bool:
    return spec.dtype.kind == "f" and spec.shape in ((), (1,))


def _chosen(signature: Signature, set_name: str, usual_name: str) -> TensorSpec | None:
    by_name = {spec.name: spec for spec in signature.outputs}
    if set_name and set_name not in by_name:
        raise FailedPrecondition(
            f"the model's [signature] settings name the output {set_name!r}; it gives {_listed(signature)}"
        )
    return by_name.get(set_name or usual_name)


def _no_output(signature: Signature, what: str, wanted: str, named: TensorSpec | None) -> FailedPrecondition:
    got = f"{named} is not" if named else f"among {_listed(signature)} there is none"
    return FailedPrecondition(
        f"{what} must come from an output {wanted} and {got}; name it in the model's [signature] settings, "
        "or use Predict"
    )


def _listed(signature: Signature) -> str:
    return "; ".join(str(spec) for spec in signature.outputs)


def classes_of(answer: Answer, signature: Signature, settings: SignatureConfig) -> Classes:
    """What Classify answers.

    Args:
        answer: What the model gave.
        signature: Its signature.
        settings: What the operator says about it.

    Returns:
        The classes; where the model gives no scores they are 0, as in TensorFlow Serving.

    Raises:
        ModelError: There are not as many names as scores.
    """
    _expect_rows(answer)
    scores_spec, classes_spec = class_outputs(signature, settings)
    names = None if classes_spec is None else answer.tensor(classes_spec.name)
    if scores_spec is not None:
        scores = answer.tensor(scores_spec.name)
    elif names is not None:
        scores = np.zeros(names.shape, np.float32)
    if settings.labels:
        names = np.array([settings.labels], STRING)
    elif names is None:
        names = np.full((1, scores.shape[1]), "", STRING)
    if names.shape[1] != scores.shape[1]:
        raise ModelError(
            f"the model gave {scores.shape[1]} scores a row, but there are {names.shape[1]} labels"
        )
    return Classes(scores, names)


def _expect_rows(answer: Answer) -> None:
    if isinstance(answer, WholeAnswer):
        raise FailedPrecondition(
            "the model answers each request whole, not in rows (batching = false): use Predict"
        )


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def values_of(answer: Answer, signature: Signature, settings: SignatureConfig) -> Array:
    """What Regress answers: [rows].

    Args:
        answer: What the model gave.
        signature: Its signature.
        settings: What the operator says about it.
    """
    _expect_rows(answer)
    return answer.tensor(value_output(signature, settings).name).reshape(-1)
