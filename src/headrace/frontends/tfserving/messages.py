"""Predict's messages: decoding of requests into checked inputs, and serialization of answers.

Requests that repeat except for their values are recognised by template and never parsed; the result is the
same as that of parsing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from headrace.base.tensors import BY_DTYPE
from headrace.batching.request import Answer, WholeAnswer
from headrace.frontends.tfserving.model_specs import answered, choice, find, find_signature
from headrace.frontends.tfserving.tensor_protos import TensorProto, read_tensor, write_tensor, writing_tensor
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.protobuf_fields import (
    LENGTH_DELIMITED,
    fields,
    is_large,
    is_large_raw,
    length_prefix,
)
from headrace.frontends.wire.repeated_requests import Learnt, Located, RepeatedRequests
from headrace.frontends.wire.tensor_templates import MOST_FIELDS, Span
from headrace.frontends.wire.tensors import (
    BYTES,
    WireTensor,
    check_names,
    checking,
    raw_bytes,
)
from headrace.frontends.wire.text_templates import Found
from headrace.frontends.wire.time_slicer import Steps, joined
from headrace.lifecycle.leases import Lease
from headrace.model.servable import CheckedInputs, Shape, Signature

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.serving.loaded_version import LoadedVersion

PredictRequest = protos.message("tensorflow.serving.PredictRequest")
PredictResponse = protos.message("tensorflow.serving.PredictResponse")

_INPUTS = 2  # PredictRequest.inputs
_OUTPUTS = 1  # PredictResponse.outputs
_KEY, _VALUE = 1, 2  # of a map's entry

# Fields of TensorProto that hold the tensor's own bytes: tensor_content, float_val, double_val. bool_val
# holds varints, which clients may encode in several ways; it is only written here, one byte for each.
_RAW_FIELDS = (4, 5, 6)
_STRINGS = 8  # TensorProto.string_val
_RAW_OUTPUT_FIELDS = {"FP32": 5, "FP64": 6, "BOOL": 11}

_WRITERS_KEPT = 64
_HEADS_KEPT = 512


class Prediction(NamedTuple):
    """A decoded request, ready for prediction.

    Attributes:
        loaded: The version that it asks for.
        inputs: The inputs.
        writer: Writes the answer.
    """

    loaded: LoadedVersion
    inputs: CheckedInputs
    writer: AnswerWriter


class PredictDecoder:
    """Decodes PredictRequests, and learns those that repeat.

    Attributes:
        recognise: Decodes a request without parsing it; see ``RepeatedRequests.recognise``.
    """

    def __init__(self, service: Service) -> None:
        """Start without templates.

        Args:
            service: Finds the version that a request asks for.
        """
        self._service = service
        values = dict.fromkeys((*_RAW_FIELDS, _STRINGS), -1)
        self._repeated: RepeatedRequests[AnswerWriter] = RepeatedRequests({_INPUTS: 1}, {_VALUE: 2}, values)
        self.recognise = self._repeated.recognise

    def parse(self, message: bytes, budget: RequestBudget) -> Steps[Prediction]:
        """Decode a request in small steps, and learn to recognise similar ones.

        Args:
            message: The serialized PredictRequest.
            budget: Limits the cost of the request.

        Returns:
            The request. Submit it in the same turn of the event loop: nothing else keeps its version loaded.

        Raises:
            HeadraceError: The request is invalid, or there is no such version.
        """
        request = protos.parse(PredictRequest, message, counted=True)
        if len(message) > AT_ONCE_BYTES:
            yield  # parsing has copied a large message
        chosen = choice(request)
        with Lease(find(self._service, chosen)) as loaded:
            signature = find_signature(loaded, chosen.signature)
            check_names(signature, request.inputs)
            budget.most_rows = loaded.config.batching.max_queue_rows
            tensors = []
            for name, proto in request.inputs.items():
                tensors.append((yield from read_tensor(signature.input(name), proto, budget)))
            inputs = yield from checking(signature, tensors, budget)
        writer = writer_for(loaded, signature, signature.check_outputs(request.output_filter))
        asked = partial(self._service.loaded, chosen.model, chosen.version, chosen.label)
        learnt = Learnt(asked, loaded, signature, inputs, writer)
        self._repeated.learn(message, tensors, learnt, partial(_located, message))
        return Prediction(loaded, inputs, writer)


def _located(message: bytes, tensors: Mapping[str, WireTensor]) -> Located | None:
    """Return the positions of the tensors' values; None unless each tensor is complete."""
    found = _spans(message, tensors)
    if found is None:
        return None
    return Located([span for spans in found.values() for span in spans], _places(found, tensors))


def _places(found: dict[str, list[Span]], tensors: Mapping[str, WireTensor]) -> dict[str, Found]:
    """Return the place of each tensor's values among all values of the message."""
    places, first = {}, 0
    for name, spans in found.items():
        places[name] = Found(first, tensors[name].shape, raw=False)
        first += len(spans)
    return places


def _spans(message: bytes, tensors: Mapping[str, WireTensor]) -> dict[str, list[Span]] | None:
    """Return the spans of each tensor's values in message order; None unless each tensor is complete."""
    found: dict[str, list[Span]] = {}
    steps = iter(range(MOST_FIELDS))
    try:
        for entry in fields(message, steps=steps):
            if entry.number != _INPUTS:
                continue
            inner = list(fields(message, entry.start, entry.stop, steps=steps))
            (key,) = [field for field in inner if field.number == _KEY]
            (value,) = [field for field in inner if field.number == _VALUE]
            parts = fields(message, value.start, value.stop, steps=steps)
            values = [field for field in parts if field.number in (*_RAW_FIELDS, _STRINGS)]
            name = message[key.start : key.stop].decode()
            if name in found or any(one.wire_type != LENGTH_DELIMITED for one in values):
                return None
            spans = [(one.start, one.stop) for one in values]
            if not _are_all(message, spans, tensors[name]):  # one value is repeated to fill the shape
                return None
            found[name] = spans
    except ValueError:  # too many fields, repeated or missing ones, or a form that no client uses
        return None
    return found if len(found) == len(tensors) else None


def _are_all(message: bytes, spans: list[Span], tensor: WireTensor) -> bool:
    values = [message[start:stop] for start, stop in spans]
    if tensor.datatype == BYTES:
        return len(values) == math.prod(tensor.shape)
    return len(values) == 1 and values[0] == tensor.values


def writer_for(loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...]) -> AnswerWriter:
    """Return the writer for a selection of outputs, made once per version.

    Args:
        loaded: The version that answers.
        signature: The signature that is called.
        outputs: The request's output_filter; empty for all.

    Raises:
        InvalidRequest: An output is unknown or named twice.
    """
    writers = cast("_Writers", loaded.codec_cache.setdefault(AnswerWriter, {}))
    found = writers.get((signature.name, outputs))
    if found is None:
        chosen = signature.check_outputs(outputs) if outputs else signature.output_names
        if len(writers) >= _WRITERS_KEPT:
            writers.clear()
        found = writers[signature.name, outputs] = AnswerWriter(loaded, signature, chosen)
    return found


class _Part(NamedTuple):
    """The layout of one output in a response.

    Attributes:
        name: Name of the output.
        row_bytes: Size of a row in bytes; None for values that are written one by one.
        prefix: Bytes before the values of an output with a fixed size.
    """

    name: str
    row_bytes: int | None
    prefix: bytes


_Writers = dict[tuple[str, tuple[str, ...]], "AnswerWriter"]


class AnswerWriter:
    """Writes the PredictResponses of one version for one selection of outputs."""

    __slots__ = ("_names", "_parts", "_specs", "_tail")

    def __init__(self, loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...]) -> None:
        """Prepare the parts that all answers share.

        Args:
            loaded: The version that answers.
            signature: The signature that is called.
            outputs: Names of the outputs to write.
        """
        by_name = {spec.name: spec for spec in signature.outputs}
        self._names = outputs
        self._specs = tuple(by_name[name] for name in outputs)
        response = PredictResponse(model_spec=answered(loaded, signature.name))
        self._tail: bytes = response.SerializeToString()
        self._parts: dict[tuple[int, tuple[Shape, ...]], tuple[_Part, ...]] = {}

    def write(self, answer: Answer) -> bytes | None:
        """Serialize an answer in one step.

        Args:
            answer: The answer.

        Returns:
            The bytes; None if this would take too long: use ``writing`` then.
        """
        written = []
        for name, row_bytes, prefix in self._parts_of(answer):
            if row_bytes is None:
                tensor = answer.tensor(name)
                if is_large(tensor):
                    return None
                response = PredictResponse(outputs={name: write_tensor(tensor)})
                written.append(response.SerializeToString())
            elif is_large_raw(answer.rows * row_bytes):
                return None
            else:
                written += (prefix, answer.raw(name, row_bytes))
        written.append(self._tail)
        return b"".join(written)

    def writing(self, answer: Answer, budget: RequestBudget) -> Steps[bytes]:
        """Serialize an answer in small steps.

        Args:
            answer: The answer.
            budget: Charged with the bytes written.

        Raises:
            Overloaded: The byte budget of all requests is exhausted.
        """
        written: list[bytes | memoryview] = []
        for name, row_bytes, prefix in self._parts_of(answer):
            if row_bytes is None:
                pieces = yield from writing_tensor(answer.tensor(name), budget)
                written += (_entry_prefix(name, sum(map(len, pieces))), *pieces)
            else:
                budget.hold(row_bytes * answer.rows)
                written += (prefix, raw_bytes(answer.tensor(name)))
        written.append(self._tail)
        return (yield from joined(written))

    def _parts_of(self, answer: Answer) -> tuple[_Part, ...]:
        if type(answer) is WholeAnswer:  # its outputs share no number of rows
            return tuple([_Part(name, None, b"") for name in self._names])
        tensors = answer.outputs.tensors
        key = (answer.stop - answer.start, tuple([tensors[name].shape[1:] for name in self._names]))
        return self._parts.get(key) or self._learn(*key)

    def _learn(self, rows: int, shapes: tuple[Shape, ...]) -> tuple[_Part, ...]:
        parts = []
        for spec, shape in zip(self._specs, shapes, strict=True):
            datatype = BY_DTYPE[spec.dtype]
            field = _RAW_OUTPUT_FIELDS.get(datatype.oip)
            if field is None:
                parts.append(_Part(spec.name, None, b""))
                continue
            head = TensorProto(dtype=datatype.tensorflow)
            for size in (rows, *shape):
                head.tensor_shape.dim.add(size=size)
            row_bytes = spec.dtype.itemsize * math.prod(shape)
            before = head.SerializeToString() + length_prefix(field, rows * row_bytes)
            prefix = _entry_prefix(spec.name, len(before) + rows * row_bytes) + before
            parts.append(_Part(spec.name, row_bytes, prefix))
        if len(self._parts) >= _HEADS_KEPT:
            self._parts.clear()
        found = self._parts[rows, shapes] = tuple(parts)
        return found


def _entry_prefix(name: str, size: int) -> bytes:
    """Return the bytes of an entry of ``outputs`` before its TensorProto of ``size`` bytes."""
    key = name.encode()
    entry = length_prefix(_KEY, len(key)) + key + length_prefix(_VALUE, size)
    return length_prefix(_OUTPUTS, len(entry) + size) + entry
