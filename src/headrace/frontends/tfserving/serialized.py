"""Serialized ``tf.Example`` rows from JSON, for models that parse them themselves.

Merging follows protobuf's own rule, as in TensorFlow Serving: when serialized messages are concatenated, the
later ones are added, and their map entries win. So the context is serialized once and put before each
example.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.tfserving.examples import Features, Values
from headrace.frontends.wire import long_lists, protos
from headrace.frontends.wire.cooperative_steps import Steps
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.model.servable import Signature

_Example = protos.message("tensorflow.Example")
_INT64 = range(-(1 << 63), 1 << 63)


def of_features(
    signature: Signature, examples: list[Features], budget: RequestBudget
) -> Steps[dict[str, Array]]:
    """Make a serialized Example of each example's features.

    Args:
        signature: A signature that takes Examples.
        examples: One example for each row; lists that several of them share are serialized once. Consumed.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: A feature mixes texts and numbers, or has an integer of over 64 bits.
        TooLarge: The features of all examples exceed the limits.
    """
    # The context's lists are the same objects in all examples, so each is serialized once, as an Example.
    parts: dict[tuple[str, int], bytes] = {}
    rows = []
    for example in examples:
        row = []
        for name, values in example.items():
            part = parts.get((name, id(values)))
            if part is None:
                part = parts[name, id(values)] = _serialized(name, values)
            row.append(part)
        budget.expanded(sum(map(len, row)), "examples")
        rows.append(b"".join(row))
        yield
    for _ in long_lists.parts(examples):  # freed only now, as lists are identified by their addresses
        yield
    budget.hold(sum(map(len, rows)))
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
