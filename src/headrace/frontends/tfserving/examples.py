"""Classify and Regress: Examples become inputs by their features' names, outputs become classes or values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.batching.request import Answer
from headrace.errors import FailedPrecondition, InvalidRequest, ModelError
from headrace.frontends import protos
from headrace.servable import CheckedInputs, Kind, Signature, TensorSpec
from headrace.tensors import STRING, Array

if TYPE_CHECKING:
    from headrace.config import SignatureConfig

Values = Sequence[int] | Sequence[float] | Sequence[bytes]
Features = Mapping[str, Values]
"""One Example: the values of its features, each a list of one kind."""

# The outputs' names in signatures that TensorFlow's estimators export.
_SCORES, _CLASSES, _VALUE = "scores", "classes", "outputs"


def examples_of(given: protos.Message) -> list[Features]:
    """Read an Input message; what the context says holds for each example that does not say it itself.

    Raises:
        InvalidRequest: There are no examples.
    """
    kind = given.WhichOneof("kind")
    found = getattr(given, kind) if kind else None
    if found is None or not found.examples:
        raise InvalidRequest("expected at least one example, got none", field="input")
    context = _features(found.context) if kind == "example_list_with_context" else {}
    return [{**context, **_features(example)} for example in found.examples]


def _features(example: protos.Message) -> dict[str, Values]:
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            features[name] = getattr(feature, kind).value
    return features


def inputs_of(signature: Signature, examples: Sequence[Features]) -> CheckedInputs:
    """Make inputs of examples; features that are no inputs are left out, as in TensorFlow.

    Args:
        signature: The inputs that are wanted.
        examples: One row each.

    Raises:
        InvalidRequest: A feature is missing, or of the wrong kind or number.
    """
    return signature.check({spec.name: _column(spec, examples) for spec in signature.inputs})


def _column(spec: TensorSpec, examples: Sequence[Features]) -> Array:
    columns = []
    for index, example in enumerate(examples):
        values = example.get(spec.name)
        if values is None:
            raise InvalidRequest(
                f"example {index} lacks it; each example needs the feature ({spec})", field=spec.name
            )
        columns.append(values)
    sizes = {len(values) for values in columns}
    if len(sizes) > 1:
        raise InvalidRequest(
            f"examples have {sorted(sizes)[:4]} values; they need the same number", field=spec.name
        )
    shape = _row_shape(spec, sizes.pop())
    flat: list[Any] = list(chain.from_iterable(columns))
    return _filled(spec, flat).reshape(len(examples), *shape)


def _row_shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
    known = math.prod(size for size in spec.shape if size is not None)
    free = spec.shape.count(None)
    if (not free and count != known) or (free and (free > 1 or not known or count % known)):
        raise InvalidRequest(f"expected {spec}, got {count} values in an example", field=spec.name)
    return tuple(count // known if size is None else size for size in spec.shape)


def _filled(spec: TensorSpec, flat: list[Any]) -> Array:
    kinds = {type(value) for value in flat}
    if kinds <= {bytes} if spec.dtype == STRING else bytes not in kinds:
        if not flat or spec.dtype == STRING:
            filled = np.empty(len(flat), spec.dtype)
            filled[:] = flat
            return filled
        return np.array(flat)
    got = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidRequest(f"expected {spec}, got a list of {got}", field=spec.name)


# ---- Results ----


class Classes(NamedTuple):
    """What Classify answers.

    Attributes:
        scores: [rows, classes].
        labels: A name for each score; None when the classes have no names.
    """

    scores: Array
    labels: list[list[str]] | None


def check_kind(signature: Signature, wanted: Kind) -> None:
    """Refuse to classify with a regression, or the other way round.

    Raises:
        InvalidRequest: The signature is of the other kind.
    """
    if signature.kind not in ("predict", wanted):
        raise InvalidRequest(
            f"signature {signature.name!r} is for {signature.kind}, not for {wanted}", field="signature_name"
        )


def class_outputs(signature: Signature, settings: SignatureConfig) -> tuple[TensorSpec, TensorSpec | None]:
    """Choose the outputs that Classify answers from: the scores, and the classes' names if one holds them.

    Args:
        signature: What the model gives.
        settings: What the operator says about it.

    Raises:
        FailedPrecondition: None fits.
    """
    scores = _chosen(signature, settings.scores, _SCORES) or next(
        (spec for spec in signature.outputs if spec.dtype.kind == "f" and len(spec.shape) == 1), None
    )
    if scores is None or scores.dtype.kind != "f" or len(scores.shape) != 1:
        raise _no_output(signature, "scores", "of floats [rows, classes]", scores)
    classes = None if settings.labels else _chosen(signature, settings.classes, _CLASSES)
    return scores, None if classes is scores else classes


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

    Raises:
        ModelError: There are not as many names as scores.
    """
    scores_spec, classes_spec = class_outputs(signature, settings)
    scores = answer.tensor(scores_spec.name)
    if settings.labels:
        labels = [list(settings.labels)] * len(scores)
    elif classes_spec is not None:
        labels = [[_text(name) for name in row] for row in answer.tensor(classes_spec.name).tolist()]
    else:
        return Classes(scores, None)
    if labels and len(labels[0]) != scores.shape[1]:
        raise ModelError(
            f"the model gave {scores.shape[1]} scores a row, but there are {len(labels[0])} labels"
        )
    return Classes(scores, labels)


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def values_of(answer: Answer, signature: Signature, settings: SignatureConfig) -> Array:
    """What Regress answers: [rows].

    Args:
        answer: What the model gave.
        signature: Its signature.
        settings: What the operator says about it.
    """
    return answer.tensor(value_output(signature, settings).name).reshape(-1)
