"""Examples in a request message: parsed one after the other, never all at once.

Messages of Examples are often large, and features that are not inputs of the model cost as much to parse as
inputs. So only the outermost fields are walked, each Example is parsed and dropped again, and the context is
repeated as a column instead of being copied into the examples.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.tfserving.example_columns import Column
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES, MESSAGE_VALUES, counted, form_of, malformed
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, Field, fields
from headrace.frontends.wire.texts import TEXT_BYTES
from headrace.frontends.wire.time_slicer import Steps
from headrace.model.servable import Signature

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

_INPUT = 2  # of each request that has examples
_LIST, _LIST_WITH_CONTEXT = 1, 2  # of an Input
_EXAMPLES, _CONTEXT = 1, 2  # of either list
_FIELDS_A_STEP = 256

_Example = protos.message("tensorflow.Example")
_FORM = form_of(_Example)


class Examples(NamedTuple):
    """Positions of a request's examples in its message.

    Attributes:
        request: The message without the examples.
        starts: Start of each example; an array of integers, as there may be many small ones.
        stops: End of each example.
        context: A serialized Example that applies to each of them; empty for none.
    """

    request: bytes
    starts: array[int]
    stops: array[int]
    context: bytes


def find_examples(message: bytes, budget: RequestBudget) -> Steps[Examples]:
    """Find a request's examples in small steps; repeated parts are merged, as in protobuf.

    Args:
        message: A serialized request of Classify, Regress or MultiInference.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: The message is malformed, or has no examples.
        TooLarge: It exceeds the limits.
    """
    steps = _Steps(budget)
    kind, before = 0, 0
    starts, stops = array("q"), array("q")
    context, rest = bytearray(), bytearray()  # a list of two-byte pieces would take thirty times the memory
    try:
        for part in fields(message):
            if part.number != _INPUT or part.wire_type != LENGTH_DELIMITED:
                rest += message[before : part.stop]
            else:
                for one in fields(message, part.start, part.stop):
                    if one.wire_type != LENGTH_DELIMITED or one.number not in (_LIST, _LIST_WITH_CONTEXT):
                        yield from steps.walked()
                        continue
                    if one.number != kind:  # of the two kinds of list, the last one wins
                        kind, context = one.number, bytearray()
                        del starts[:], stops[:]
                    for inner in fields(message, one.start, one.stop):
                        yield from steps.walked(inner)
                        if inner.wire_type != LENGTH_DELIMITED:
                            continue
                        if inner.number == _EXAMPLES:
                            starts.append(inner.start)
                            stops.append(inner.stop)
                        elif inner.number == _CONTEXT and kind == _LIST_WITH_CONTEXT:
                            context += message[inner.start : inner.stop]
            before = part.stop
            yield from steps.walked()
    except ValueError as error:
        raise malformed(message, before) from error
    if not starts:
        raise InvalidRequest("expected at least one example, got none", field="input")
    return Examples(bytes(rest), starts, stops, bytes(context))


class _Steps:
    """Counts the fields walked, and charges them to the budget a step at a time."""

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self._walked = self._values = 0

    def walked(self, field: Field | None = None) -> Steps[None]:
        self._walked += 1
        self._values += 1 if field is None else MESSAGE_VALUES
        if self._walked >= _FIELDS_A_STEP:
            self._budget.values(self._values, "input")
            self._walked = self._values = 0
            yield


def read_columns(
    signature: Signature, message: bytes, given: Examples, budget: RequestBudget
) -> Steps[dict[str, Array]]:
    """Make columns of examples; features that are not inputs are ignored, as in TensorFlow.

    Args:
        signature: The signature whose inputs are made.
        message: The message.
        given: Positions of the examples in it.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: A feature is missing, or has the wrong type or number of values.
        TooLarge: There are too many values, or the repeated ones take too much.
    """
    if signature.examples:
        return {signature.inputs[0].name: (yield from _serialized(message, given, budget))}
    columns = [Column(spec, budget) for spec in signature.inputs]
    for index, (start, stop) in enumerate(zip(given.starts, given.stops, strict=True)):
        features = yield from _parse(message[start:stop], budget)
        if stop - start > AT_ONCE_BYTES:
            yield
        said = [_values(features, column.spec.name) for column in columns]
        budget.values(sum([1 if values is None else len(values) for values in said]), "input")
        for column, values in zip(columns, said, strict=True):
            column.add(index, values)
        yield
    shared = yield from _parse(given.context, budget)
    arrays = {
        column.spec.name: column.array(len(given.starts), _values(shared, column.spec.name))
        for column in columns
    }
    budget.hold(sum(array.nbytes + TEXT_BYTES * array.size for array in arrays.values()))
    return arrays


def _parse(example: bytes, budget: RequestBudget) -> Steps[Mapping[str, protos.Message]]:
    """Return the features of an Example; a large one is counted before it is parsed."""
    if len(example) > AT_ONCE_BYTES:
        for values in counted(example, _FORM):
            budget.values(values, "input")
            yield
        yield  # parsing copies a large one, as slicing it did
    features: Mapping[str, protos.Message] = protos.parse(_Example, example, counted=True).features.feature
    return features


def _serialized(message: bytes, given: Examples, budget: RequestBudget) -> Steps[Array]:
    """Return serialized Examples, each after the context, so that the example's own features win."""
    count = len(given.starts)
    budget.expanded(len(given.context) * count, "context")
    budget.hold(len(message))
    yield from _parse(given.context, budget)
    rows = np.empty(count, STRING)
    for index, (start, stop) in enumerate(zip(given.starts, given.stops, strict=True)):
        example = message[start:stop]
        yield from _parse(example, budget)  # validates it: an invalid one would fail the whole batch
        rows[index] = given.context + example
        yield
    return rows


def _values(features: Mapping[str, protos.Message], name: str) -> Any:
    """Return the values of a feature; None if it is absent or empty. Indexing the map would create it."""
    feature = features.get(name)
    kind = None if feature is None else feature.WhichOneof("kind")
    return None if kind is None else getattr(feature, kind).value
