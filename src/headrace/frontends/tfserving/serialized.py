"""Examples for models that read them themselves: one row, one serialized ``tf.Example``.

Protobuf's own rule does the merging, as in TensorFlow Serving: of messages that are written one behind the
other, what comes later is added, and what has the same name wins. So the context is serialized once and put
in front of each example.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.errors import InvalidRequest
from headrace.frontends.tfserving.examples import Features, Values
from headrace.frontends.wire import long_lists, protos
from headrace.frontends.wire.allowance import Allowance
from headrace.frontends.wire.steps import Steps
from headrace.servable import Signature
from headrace.tensors import STRING, Array

_Example = protos.message("tensorflow.Example")
_INT64 = range(-(1 << 63), 1 << 63)


def of_features(
    signature: Signature, examples: list[Features], allowance: Allowance
) -> Steps[dict[str, Array]]:
    """Make rows of features, as JSON has them.

    Args:
        signature: A signature that takes Examples.
        examples: One row each; those that have a list of values in common share it. Used up.
        allowance: What the request may cost.

    Raises:
        InvalidRequest: A feature mixes texts and numbers, or has an integer that is too large.
        TooLarge: The features for all examples take too much.
    """
    # What comes from the context is the same list in each example: serialized once, as an Example of its own.
    parts: dict[tuple[str, int], bytes] = {}
    rows = []
    for example in examples:
        row = []
        for name, values in example.items():
            part = parts.get((name, id(values)))
            if part is None:
                part = parts[name, id(values)] = _serialized(name, values)
            row.append(part)
        allowance.expanded(sum(map(len, row)), "examples")
        rows.append(b"".join(row))
        yield
    for _ in long_lists.parts(examples):  # not before: lists are known by where they lie
        yield
    allowance.hold(sum(map(len, rows)))
    column = np.empty(len(rows), STRING)
    column[:] = rows
    return {signature.inputs[0].name: column}


def _serialized(name: str, values: Values) -> bytes:
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
