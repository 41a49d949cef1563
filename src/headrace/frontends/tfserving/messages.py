"""Predict's messages: a request's bytes become checked inputs, an answer becomes the response's bytes.

Requests that repeat but for their numbers are recognised by template and never parsed; what that yields is
what parsing would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import ReferenceType, ref

from headrace.batching.request import Answer
from headrace.frontends import protos
from headrace.frontends.oip.tensors import WireTensor, check, is_exact, spread_inputs
from headrace.frontends.templates import LENGTH_DELIMITED, Field, Span, Templates, fields, length_prefix
from headrace.frontends.tfserving.specs import ModelChoice, answered, choice, find, find_signature
from headrace.frontends.tfserving.tensors import TensorProto, read_tensor, write_tensor
from headrace.servable import CheckedInputs, RowLayout, Shape, Signature, spread_columns
from headrace.tensors import BY_DTYPE, Buffer

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.loaded import LoadedVersion

PredictRequest = protos.message("tensorflow.serving.PredictRequest")
PredictResponse = protos.message("tensorflow.serving.PredictResponse")

_INPUTS = 2  # PredictRequest.inputs
_OUTPUTS = 1  # PredictResponse.outputs
_KEY, _VALUE = 1, 2  # of a map's entry

# Fields of TensorProto whose bytes on the wire are the tensor's own: tensor_content, float_val, double_val.
# Those of bool_val are varints, which a client may write in more than one way; ours take one byte each.
_RAW_FIELDS = (4, 5, 6)
_RAW_OUTPUT_FIELDS = {"FP32": 5, "FP64": 6, "BOOL": 11}

_WRITERS_KEPT = 64
_HEADS_KEPT = 512


class Prediction(NamedTuple):
    """A request, ready to be predicted.

    Attributes:
        loaded: The version that it means.
        inputs: Its inputs.
        writer: Writes its answer.
    """

    loaded: LoadedVersion
    inputs: CheckedInputs
    writer: AnswerWriter


class _Known(NamedTuple):
    """What a template says; with a weak reference, so that it keeps no unloaded version alive."""

    chosen: ModelChoice
    loaded: ReferenceType[LoadedVersion]
    layout: RowLayout
    rows: int
    writer: AnswerWriter
    reorder: Callable[[Sequence[bytes]], tuple[bytes, ...]] | None
    spread: tuple[int, ...]


class PredictDecoder:
    """Decodes PredictRequests, and learns the ones that repeat."""

    def __init__(self, service: Service) -> None:
        """Know nothing yet.

        Args:
            service: Finds the version that a request means.
        """
        self._service = service
        self._find = service.loaded
        self._templates: Templates[_Known] = Templates()

    def decode(self, message: bytes) -> Prediction:
        """Decode a request.

        Args:
            message: The serialized PredictRequest.

        Raises:
            HeadraceError: The request is wrong, or there is no such version.
        """
        found = self._templates.find(message)
        if found is not None:
            known, parts = found
            columns: tuple[Buffer, ...] = parts
            model, version, label, _ = known.chosen
            loaded = self._find(model, version, label)
            if known.loaded() is loaded:
                if known.reorder is not None:
                    columns = known.reorder(parts)
                if known.spread:
                    columns = spread_columns(columns, known.spread, known.layout, known.rows)
                return Prediction(loaded, CheckedInputs(known.layout, columns, known.rows), known.writer)
        return self.parse(message)

    def parse(self, message: bytes) -> Prediction:
        """Decode a request without a template, and learn it.

        Args:
            message: The serialized PredictRequest.

        Raises:
            HeadraceError: The request is wrong, or there is no such version.
        """
        request = protos.parse(PredictRequest, message)
        chosen = choice(request)
        loaded = find(self._service, chosen)
        signature = find_signature(loaded, chosen.signature)
        max_bytes = self._service.max_message_bytes
        tensors = [read_tensor(name, proto, max_bytes) for name, proto in request.inputs.items()]
        inputs = check(signature, tensors)
        writer = writer_for(loaded, signature, tuple(request.output_filter))
        self._learn(message, chosen, tensors, signature, Prediction(loaded, inputs, writer))
        return Prediction(loaded, inputs, writer)

    def _learn(
        self,
        message: bytes,
        chosen: ModelChoice,
        tensors: list[WireTensor],
        signature: Signature,
        prediction: Prediction,
    ) -> None:
        layout = prediction.inputs.layout
        by_name = {tensor.name: tensor for tensor in tensors}
        found = _spans(message, by_name)
        if found is None or not all(is_exact(spec, by_name[spec.name]) for spec in layout.specs):
            return
        names, spans = list(found), list(found.values())
        order = [names.index(spec.name) for spec in layout.specs]
        rows = [by_name[spec.name].shape[0] for spec in layout.specs]
        known = _Known(
            chosen,
            ref(prediction.loaded),
            layout,
            prediction.inputs.rows,
            prediction.writer,
            itemgetter(*order) if order != sorted(order) else None,
            spread_inputs(signature, rows) or (),
        )
        self._templates.learn(message, spans, known)


def _spans(message: bytes, tensors: dict[str, WireTensor]) -> dict[str, Span] | None:
    """Find each tensor's bytes, in the message's order; None unless each lies there whole, once."""
    found: dict[str, Span] = {}
    try:
        for entry in fields(message):
            if entry.number != _INPUTS:
                continue
            (key,) = _only(message, entry, _KEY)
            (value,) = _only(message, entry, _VALUE)
            (raw,) = [
                field for field in fields(message, value.start, value.stop) if field.number in _RAW_FIELDS
            ]
            name = message[key.start : key.stop].decode()
            if name in found or raw.wire_type != LENGTH_DELIMITED:
                return None
            if message[raw.start : raw.stop] != tensors[name].values:  # one value that stands for many
                return None
            found[name] = raw.start, raw.stop
    except ValueError:  # twice there, not there, or written as no client of this API writes it
        return None
    return found if len(found) == len(tensors) else None


def _only(message: bytes, entry: Field, number: int) -> list[Field]:
    return [field for field in fields(message, entry.start, entry.stop) if field.number == number]


def writer_for(loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...]) -> AnswerWriter:
    """The writer for a selection of outputs, made once per version.

    Args:
        loaded: The version that answers.
        signature: The signature that it is called by.
        outputs: The request's output_filter; none for all.

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
    """How one output is written.

    Attributes:
        name: The output.
        row_bytes: The size of a row; None for values that are written one by one.
        prefix: What stands before the bytes of an output with a fixed size.
    """

    name: str
    row_bytes: int | None
    prefix: bytes


_Writers = dict[tuple[str, tuple[str, ...]], "AnswerWriter"]


class AnswerWriter:
    """Writes the PredictResponses of one version for one selection of outputs."""

    __slots__ = ("_names", "_parts", "_specs", "_tail")

    def __init__(self, loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...]) -> None:
        """Prepare what all answers have in common.

        Args:
            loaded: The version that answers.
            signature: The signature that it is called by.
            outputs: The names of outputs that it has.
        """
        by_name = {spec.name: spec for spec in signature.outputs}
        self._names = outputs
        self._specs = tuple(by_name[name] for name in outputs)
        response = PredictResponse(model_spec=answered(loaded, signature.name))
        self._tail: bytes = response.SerializeToString()
        self._parts: dict[tuple[int, tuple[Shape, ...]], tuple[_Part, ...]] = {}

    def write(self, answer: Answer) -> bytes:
        """Serialize an answer.

        Args:
            answer: What the model gave.
        """
        tensors = answer.outputs.tensors
        key = (answer.stop - answer.start, tuple([tensors[name].shape[1:] for name in self._names]))
        parts = self._parts.get(key)
        if parts is None:
            parts = self._learn(*key)
        written = []
        for name, row_bytes, prefix in parts:
            if row_bytes is None:
                response = PredictResponse(outputs={name: write_tensor(answer.tensor(name))})
                written.append(response.SerializeToString())
            else:
                written += (prefix, answer.raw(name, row_bytes))
        written.append(self._tail)
        return b"".join(written)

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
            prefix = _entry_prefix(spec.name, head.SerializeToString(), field, rows * row_bytes)
            parts.append(_Part(spec.name, row_bytes, prefix))
        if len(self._parts) >= _HEADS_KEPT:
            self._parts.clear()
        found = self._parts[rows, shapes] = tuple(parts)
        return found


def _entry_prefix(name: str, head: bytes, field: int, size: int) -> bytes:
    """All of an entry of ``outputs`` that stands before the bytes of its tensor."""
    key = name.encode()
    tensor = head + length_prefix(field, size)
    entry = length_prefix(_KEY, len(key)) + key + length_prefix(_VALUE, len(tensor) + size) + tensor
    return length_prefix(_OUTPUTS, len(entry) + size) + entry
