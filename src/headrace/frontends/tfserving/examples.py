"""Classify and Regress: Examples become inputs by feature name, outputs become classes or values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.base.errors import FailedPrecondition, InvalidRequest, ModelError
from headrace.base.tensors import STRING, Array
from headrace.batching.request import Answer, WholeAnswer
from headrace.frontends.tfserving.example_columns import Column
from headrace.frontends.wire import long_lists, protos
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import Steps
from headrace.model.labelled_servable import LABEL, SCORE, by_class, is_of_two, is_scores, scores_output
from headrace.model.servable import Kind, Signature, TensorSpec

if TYPE_CHECKING:
    from headrace.config import SignatureConfig
    from headrace.frontends.wire.request_budget import RequestBudget

# Serialized `tf.Example` rows from JSON, for models that parse them themselves.
#
# Merging follows protobuf's own rule, as in TensorFlow Serving: when serialized messages are concatenated,
# the later ones are added, and their map entries win. So the context is serialized once and put before each
# example.


_Example = protos.message("tensorflow.Example")
_INT64 = range(-(1 << 63), 1 << 63)


def of_features(
    signature: Signature, examples: list[Features], shared: Features, budget: RequestBudget
) -> Steps[dict[str, Array]]:
    """Make a serialized Example of each example's features.

    Args:
        signature: A signature that takes Examples.
        examples: One example for each row; consumed.
        shared: Features of the context, for all examples that lack them.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: A feature mixes texts and numbers, or has an integer of over 64 bits.
        TooLarge: The context, repeated for all examples, exceeds the limits.
    """
    context = yield from _serialized(shared)
    budget.expanded(len(context) * len(examples), "context")
    rows, done = [], 0
    for part in long_lists.parts(examples, _EXAMPLES_A_STEP):
        for example in part:
            own = yield from _serialized(example)
            budget.hold(len(own))
            rows.append(context + own)
            done += len(rows[-1]) + len(example) * _FEATURE_BYTES + _ROW_BYTES
            if done >= _STEP_BYTES:
                done = 0
                yield
    column = np.empty(len(rows), STRING)
    column[:] = rows
    return {signature.inputs[0].name: column}


def _serialized(features: Features) -> Steps[bytes]:
    """Serialize features one by one; protobuf reads them as one Example."""
    written = []
    for name, values in features.items():
        written.append(_feature(name, values))
        if len(written) % _FEATURES_A_STEP == 0:
            yield
    return b"".join(written)


def _feature(name: str, values: Values) -> bytes:
    kinds = {type(value) for value in values}
    if bytes in kinds and len(kinds) > 1:
        raise InvalidRequest("expected values of one kind, got texts and numbers", field=name)
    feature: Mapping[str, object]
    if bytes in kinds:
        feature = {"bytes_list": {"value": values}}
    elif float in kinds:
        feature = {"float_list": {"value": values}}
    elif all(value in _INT64 for value in values):
        feature = {"int64_list": {"value": values}}
    else:
        raise InvalidRequest("expected integers of at most 64 bits", field=name)
    written: bytes = _Example(features={"feature": {name: feature}}).SerializeToString()
    return written


Values = list[Any]
Features = dict[str, Values]
"""One Example: the values of each feature, as a list of one type."""

_EXAMPLES_A_STEP = 256
_VALUES_A_STEP = 512
_FILLED_A_STEP = 8192
_FEATURES_A_STEP = 32
_STEP_BYTES = 256 * 1024
_FEATURE_BYTES = _STEP_BYTES // _FEATURES_A_STEP  # so many are copied while one feature is serialized
_ROW_BYTES = 1024  # so many are copied in the time that any row takes

# Names of the outputs in signatures that TensorFlow's estimators export.
_SCORES, _CLASSES, _VALUE = "scores", "classes", "outputs"


def columns_of(
    signature: Signature, examples: list[Features], shared: Features, budget: RequestBudget
) -> Steps[dict[str, Array]]:
    """Make columns of examples; features that are not inputs are ignored, as in TensorFlow.

    An example may lack a feature if the input has a default for absent values.

    Args:
        signature: The signature whose inputs are made.
        examples: One example for each row; consumed.
        shared: Features of the context, for all examples that lack them.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: A feature is missing, or has the wrong type or number of values.
        TooLarge: Too many values would be filled in or repeated.
    """
    columns = [Column(spec, budget) for spec in signature.inputs]
    count, done, needed = 0, 0, len(columns) - len(shared)
    for part in long_lists.parts(examples, _EXAMPLES_A_STEP):
        budget.values(max(0, needed * len(part) - sum(map(len, part))), "examples")  # those that are absent
        for column in columns:
            name, add = column.spec.name, column.add
            for index, example in enumerate(part, count):
                add(index, example.get(name))
            done += len(part)
            if done >= _VALUES_A_STEP:
                done = 0
                yield
        count += len(part)
    arrays = {}
    for spec in signature.inputs:
        arrays[spec.name] = columns.pop(0).array(count, shared.get(spec.name))  # and frees the column
        done += count
        if done >= _FILLED_A_STEP:
            done = 0
            yield
    return arrays


# ---- Results ----


class Classes(NamedTuple):
    """The result of Classify.

    Attributes:
        scores: Scores ``[rows, classes]``.
        names: Class names ``[rows, classes]``, or ``[1, classes]`` if all rows have the same.
    """

    scores: Array
    names: Array

    def texts(self, rows: slice) -> list[list[str]]:
        """Return the class names of some rows, a list for each row."""
        if len(self.names) == 1:
            return [[_text(name) for name in self.names[0]]] * len(self.scores[rows])
        return [[_text(name) for name in row] for row in self.names[rows].tolist()]


def check_kind(signature: Signature, wanted: Kind) -> None:
    """Check that a signature is not of the other kind, as a regression is for Classify.

    Raises:
        InvalidRequest: The signature is of the other kind.
    """
    if signature.kind not in ("predict", wanted):
        raise InvalidRequest(
            f"signature {signature.name!r} is for {signature.kind}, not for {wanted}; use "
            f"{signature.kind.capitalize()} or Predict",
            field="signature_name",
        )


def check_classify(signature: Signature, settings: SignatureConfig) -> None:
    """Check that a signature can classify, before anything is computed.

    Raises:
        InvalidRequest: It is of another kind.
        FailedPrecondition: It has no output of classes or scores.
    """
    check_kind(signature, "classify")
    class_outputs(signature, settings)


def check_regress(signature: Signature, settings: SignatureConfig) -> None:
    """Check that a signature can regress, before anything is computed.

    Raises:
        InvalidRequest: It is of another kind.
        FailedPrecondition: It has no output of values.
    """
    check_kind(signature, "regress")
    value_output(signature, settings)


def class_outputs(
    signature: Signature, settings: SignatureConfig
) -> tuple[TensorSpec | None, TensorSpec | None]:
    """Choose the outputs from which Classify is answered: the scores, the class names, or both.

    Args:
        signature: The signature.
        settings: The model's settings for signatures.

    Returns:
        The output of the scores and that of the names; one of them may be None.

    Raises:
        FailedPrecondition: No output fits, or the one in the settings does not.
    """
    outputs, labels = _own_outputs(signature, settings), len(settings.labels)
    scores = _chosen(outputs, settings.scores, _SCORES) or scores_output(outputs, labels)
    classes = None if settings.labels else _chosen(outputs, settings.classes, _CLASSES)
    classes = None if classes is scores else classes
    if classes is not None and (classes.dtype.kind == "f" or len(classes.shape) != 1):
        raise _no_output(outputs, "classes", "of texts [rows, classes]", classes)
    fits = classes is not None if scores is None else is_scores(scores) or is_of_two(scores, labels)
    if not fits:
        raise _no_output(outputs, "scores", "of floats [rows, classes]", scores)
    return scores, classes


def _own_outputs(signature: Signature, settings: SignatureConfig) -> Sequence[TensorSpec]:
    """Return the model's outputs, without those that ``top`` adds."""
    if not settings.top:
        return signature.outputs
    return [spec for spec in signature.outputs if spec.name not in (LABEL, SCORE)]


def value_output(signature: Signature, settings: SignatureConfig) -> TensorSpec:
    """Choose the output from which Regress is answered.

    Args:
        signature: The signature.
        settings: The model's settings for signatures.

    Raises:
        FailedPrecondition: No output fits, or more than one does.
    """
    outputs = _own_outputs(signature, settings)
    named = _chosen(outputs, settings.scores, _VALUE)
    fitting = [spec for spec in ([named] if named else outputs) if _is_value(spec)]
    if len(fitting) != 1:
        raise _no_output(outputs, "the value", "of floats [rows] or [rows, 1], the only such output", named)
    return fitting[0]


def _is_value(spec: TensorSpec) -> bool:
    return spec.dtype.kind == "f" and spec.shape in ((), (1,))


def _chosen(outputs: Sequence[TensorSpec], set_name: str, usual_name: str) -> TensorSpec | None:
    by_name = {spec.name: spec for spec in outputs}
    if set_name and set_name not in by_name:
        raise FailedPrecondition(
            f"the model's [signature] settings name the output {set_name!r}; expected {_listed(outputs)}"
        )
    return by_name.get(set_name or usual_name)


def _no_output(
    outputs: Sequence[TensorSpec], what: str, wanted: str, named: TensorSpec | None
) -> FailedPrecondition:
    got = f"got {named}" if named else f"got {_listed(outputs)}"
    return FailedPrecondition(
        f"{what} must come from an output {wanted}; {got}; name it in the model's [signature] settings, "
        "or use Predict"
    )


def _listed(outputs: Sequence[TensorSpec]) -> str:
    return "; ".join(str(spec) for spec in outputs)


def classes_of(answer: Answer, signature: Signature, settings: SignatureConfig) -> Classes:
    """Return the result of Classify.

    Args:
        answer: The answer.
        signature: The signature.
        settings: The model's settings for signatures.

    Returns:
        The classes; if the model returns no scores they are 0, as in TensorFlow Serving.

    Raises:
        FailedPrecondition: The model does not answer in rows, or has no fitting outputs.
        ModelError: The numbers of names and scores differ.
    """
    _expect_rows(answer)
    scores_spec, classes_spec = class_outputs(signature, settings)
    names = None if classes_spec is None else answer.tensor(classes_spec.name)
    if scores_spec is not None:
        scores = by_class(scores_spec, answer.tensor(scores_spec.name), len(settings.labels))
    elif names is not None:
        scores = np.zeros(names.shape, np.float32)
    if settings.labels:
        names = np.array([settings.labels], STRING)
    elif names is None:
        names = np.full((1, scores.shape[1]), "", STRING)
    if names.shape[1] != scores.shape[1]:
        raise ModelError(
            f"the model gave {scores.shape[1]} scores per row, but there are {names.shape[1]} labels"
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
    """Return the result of Regress, ``[rows]``.

    Args:
        answer: The answer.
        signature: The signature.
        settings: The model's settings for signatures.

    Raises:
        FailedPrecondition: The model does not answer in rows, or has no fitting output.
    """
    _expect_rows(answer)
    return answer.tensor(value_output(signature, settings).name).reshape(-1)
