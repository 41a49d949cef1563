"""ModelInfer's messages: a request's bytes become checked inputs, an answer becomes the response's bytes.

Requests that repeat are recognised by template and never parsed; what that yields is what parsing would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import ReferenceType, ref

from headrace.batching.request import NO_DEADLINE, Answer, Origin
from headrace.errors import InvalidRequest
from headrace.frontends.calls import origin_text
from headrace.frontends.oip.datatypes import datatype_name, refuse_texts
from headrace.frontends.oip.parameters import (
    ANSWERED_BY_PARAMETER,
    SIGNATURE_PARAMETER,
    refuse_parameters,
    signature_parameter,
    timeout_parameter,
    version_number,
)
from headrace.frontends.oip.typed_contents import CONTENTS, writing_output
from headrace.frontends.wire import protos
from headrace.frontends.wire.joining import joined
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, fields, length_prefix
from headrace.frontends.wire.protobuf_packing import is_large, is_large_raw, raw_texts_of
from headrace.frontends.wire.steps import Steps
from headrace.frontends.wire.templates import MOST_FIELDS, Span, Templates
from headrace.frontends.wire.tensors import (
    BYTES,
    WireTensor,
    check_names,
    checking,
    numbers,
    raw_bytes,
    spread_if_repeatable,
    texts_of,
    wire_shape,
)
from headrace.frontends.wire.text_templates import Found, TextTemplates, is_packable
from headrace.frontends.wire.texts import TEXT_BYTES, gathering, join_strings
from headrace.lifecycle.handle import Lease
from headrace.servable import (
    CheckedInputs,
    RowLayout,
    Shape,
    Signature,
    signature_named,
    spread_columns,
    takes_packed,
)
from headrace.tensors import BY_OIP, STRING, Array, Buffer

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance
    from headrace.loaded import LoadedVersion

InferRequest = protos.message("inference.ModelInferRequest")
InferResponse = protos.message("inference.ModelInferResponse")

REQUEST_ID = 3
"""The number of ModelInferRequest.id."""

_RAW_INPUTS = 7  # ModelInferRequest.raw_input_contents
_ID = 3  # ModelInferResponse.id
_RAW_OUTPUTS = 6  # ModelInferResponse.raw_output_contents
_WRITERS_KEPT = 64
_HEADS_KEPT = 512

_tuple = tuple.__new__


class Inference(NamedTuple):
    """A request, ready to be predicted.

    Attributes:
        loaded: The version that it means.
        inputs: Its inputs.
        writer: Writes its answer.
        request_id: What the client calls it; echoed.
        deadline: When its answer loses its worth, on the monotonic clock.
    """

    loaded: LoadedVersion
    inputs: CheckedInputs
    writer: AnswerWriter
    request_id: str
    deadline: float


class _Known(NamedTuple):
    """What a template says; with a weak reference, so that it keeps no unloaded version alive."""

    model: str
    version: int | None
    loaded: ReferenceType[LoadedVersion]
    layout: RowLayout
    rows: int
    writer: AnswerWriter
    is_plain: bool
    """Whether the tensors are the columns, as they are: none of what follows."""
    has_id: bool
    reorder: Callable[[Sequence[bytes]], tuple[bytes, ...]] | None
    spread: tuple[int, ...]


class InferDecoder:
    """Decodes ModelInferRequests, and learns the ones that repeat."""

    def __init__(self, loaded: Callable[[str, int | None], LoadedVersion]) -> None:
        """Know nothing yet.

        Args:
            loaded: Finds the version that a request means.
        """
        self._loaded = loaded
        self._templates: Templates[_Known] = Templates()
        self._texts: TextTemplates[_Known] = TextTemplates({REQUEST_ID: -1, _RAW_INPUTS: -1})

    def recognise(self, message: bytes, deadline: float = NO_DEADLINE) -> Inference | None:
        """Decode a request without parsing it, if one like it was parsed before.

        Args:
            message: The serialized ModelInferRequest.
            deadline: The call's own.

        Raises:
            HeadraceError: There is no such version any more.
        """
        found = self._templates.find(message)
        if found is None:
            return None if self._texts.is_empty else self._recognise_texts(message, deadline)
        (model, version, known, layout, rows, writer, is_plain, has_id, reorder, spread), parts = found
        columns: tuple[Buffer, ...] = parts
        loaded = self._loaded(model, version)
        if known() is not loaded:
            return None
        request_id: str | None = ""
        if not is_plain:
            if has_id:
                request_id = _decoded(parts[0])
                if request_id is None:
                    return None
                columns = parts = parts[1:]
            if reorder is not None:
                columns = reorder(parts)
            if spread:
                columns = spread_columns(columns, spread, layout, rows)
        # Named tuples made without their slow constructors: this is every request's way.
        inputs = _tuple(CheckedInputs, (layout, columns, rows))
        return _tuple(Inference, (loaded, inputs, writer, request_id, deadline))

    def _recognise_texts(self, message: bytes, deadline: float) -> Inference | None:
        found = self._texts.find(message)
        if found is None:
            return None
        known, columns = found
        loaded = self._loaded(known.model, known.version)
        if known.loaded() is not loaded:
            return None
        request_id = _decoded(self._texts.first_value(message)) if known.has_id else ""
        if request_id is None:
            return None
        inputs = CheckedInputs(known.layout, columns, known.rows)
        return Inference(loaded, inputs, known.writer, request_id, deadline)

    def parse(self, message: bytes, deadline: float, allowance: Allowance) -> Steps[Inference]:
        """Decode a request, in small steps, and learn it.

        Args:
            message: The serialized ModelInferRequest.
            deadline: The call's own; the request's timeout can only bring it forward.
            allowance: What the request may cost.

        Returns:
            What to submit in the turn of the event loop in which this ends: nothing else keeps the version.

        Raises:
            HeadraceError: The request is wrong, or there is no such version.
        """
        request = protos.parse(InferRequest, message, counted=True)
        if len(message) > AT_ONCE_BYTES:
            yield  # parsing has copied it
        version = version_number(request.model_version)
        with Lease(self._loaded(request.model_name, version)) as loaded:
            signature = signature_named(loaded.signatures, signature_parameter(request.parameters))
            allowance.most_rows = loaded.config.batching.max_queue_rows
            tensors = yield from _tensors(request, signature, allowance)
            inputs = yield from checking(signature, tensors, allowance)
        is_raw = len(request.raw_input_contents) > 0
        outputs = signature.check_outputs(_outputs(request.outputs))
        writer = writer_for(loaded, signature, outputs, typed=not is_raw)
        if request.parameters:
            deadline = min(deadline, timeout_parameter(request.parameters))
        inference = Inference(loaded, inputs, writer, request.id, deadline)
        if is_raw and all(name == SIGNATURE_PARAMETER for name in request.parameters):
            self._learn(message, tensors, version, signature, inference)
        return inference

    def _learn(
        self,
        message: bytes,
        tensors: list[WireTensor],
        version: int | None,
        signature: Signature,
        inference: Inference,
    ) -> None:
        by_name = {tensor.name: tensor for tensor in tensors}
        spread = spread_if_repeatable(signature, inference.inputs, by_name)
        packs = spread is None and takes_packed(inference.loaded.servable)
        if spread is None and not (packs and is_packable(signature, inference.inputs, by_name)):
            return
        layout, places = inference.inputs.layout, {name: index for index, name in enumerate(by_name)}
        order = [places[spec.name] for spec in layout.specs]
        reorder = itemgetter(*order) if order != sorted(order) else None
        has_id = bool(inference.request_id)
        spans = _spans(message, len(tensors), has_id=has_id)
        if spans is None:
            return
        known = _Known(
            inference.loaded.name,
            version,
            ref(inference.loaded),
            layout,
            inference.inputs.rows,
            inference.writer,
            not (has_id or reorder or spread),
            has_id,
            reorder,
            spread or (),
        )
        if packs:
            found = {name: Found(has_id + place, by_name[name].shape) for name, place in places.items()}
            self._texts.learn(message, inference.inputs, found, known)
        else:
            self._templates.learn(message, spans, known)


def _decoded(request_id: bytes) -> str | None:
    """A request's id; None for what is no text: parsing knows the right error."""
    try:
        return request_id.decode()
    except UnicodeDecodeError:
        return None


def _spans(message: bytes, tensors: int, *, has_id: bool) -> list[Span] | None:
    """Find what differs between messages: the id, if any, then the tensors; None if they stand otherwise."""
    wanted = [*[REQUEST_ID] * has_id, *[_RAW_INPUTS] * tensors]
    try:
        found = [
            field
            for field in fields(message, steps=iter(range(MOST_FIELDS)))
            if field.number in (REQUEST_ID, _RAW_INPUTS) and field.wire_type == LENGTH_DELIMITED
        ]
    except ValueError:  # too many, or a group: legal, but nothing that any client of this protocol sends
        return None
    return (
        [(field.start, field.stop) for field in found]
        if [field.number for field in found] == wanted
        else None
    )


def _outputs(outputs: Iterable[protos.Message]) -> Iterator[str]:
    for output in outputs:
        if output.parameters:
            refuse_parameters(output.parameters, output.name)
        yield output.name


def _tensors(request: protos.Message, signature: Signature, allowance: Allowance) -> Steps[list[WireTensor]]:
    inputs, raw = request.inputs, request.raw_input_contents
    check_names(signature, (tensor.name for tensor in inputs))
    if raw and len(raw) != len(inputs):
        raise InvalidRequest(
            f"expected one for each of the {len(inputs)} inputs, got {len(raw)}", field="raw_input_contents"
        )
    specs = {spec.name: spec for spec in signature.inputs}
    tensors = []
    for index, tensor in enumerate(inputs):
        if tensor.parameters:
            refuse_parameters(tensor.parameters, tensor.name)
        if raw and tensor.HasField("contents"):
            raise InvalidRequest(
                "came in contents and in raw_input_contents; use one of them", field=tensor.name
            )
        shape = wire_shape(tensor.name, tensor.shape)
        allowance.rows(shape[0] if shape else 0, tensor.name)
        refuse_texts(specs[tensor.name], tensor.datatype, shape)
        values = raw[index] if raw else b""  # taken once only: each time is a copy
        found = WireTensor(tensor.name, tensor.datatype, shape, values)
        if len(values) > AT_ONCE_BYTES:
            yield
        if not raw:
            found = found._replace(values=(yield from _typed_values(tensor, allowance)))
        elif found.datatype == BYTES:
            found = found._replace(values=(yield from texts_of(found, values, allowance)))
        tensors.append(found)
    return tensors


def _typed_values(tensor: protos.Message, allowance: Allowance) -> Steps[bytes | Array]:
    datatype = tensor.datatype
    wanted = CONTENTS.get(datatype)
    if wanted is None:
        raise InvalidRequest(
            f"datatype {datatype!r:.40} has no contents; send raw_input_contents "
            f"(contents exist for {', '.join(CONTENTS)})",
            field=tensor.name,
        )
    given = [field.name for field, _ in tensor.contents.ListFields()]
    if given and given != [wanted]:
        raise InvalidRequest(f"expected {wanted} for {datatype}, got {', '.join(given)}", field=tensor.name)
    values = getattr(tensor.contents, wanted)
    if datatype == BYTES:
        allowance.hold(TEXT_BYTES * len(values))
        return (yield from gathering(values))
    return numbers(tensor.name, datatype, BY_OIP[datatype].dtype, values).tobytes()


def writer_for(
    loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...], *, typed: bool = False
) -> AnswerWriter:
    """The writer for a selection of outputs, made once per version.

    Args:
        loaded: The version that answers.
        signature: The signature that it is called by.
        outputs: The outputs that the client asked for; none for all.
        typed: Whether the client sent typed contents, and shall get them; all raw where one has none.

    Raises:
        InvalidRequest: An output is unknown or named twice.
    """
    writers = cast("_Writers", loaded.codec_cache.setdefault(AnswerWriter, {}))
    found = writers.get((signature.name, outputs, typed))
    if found is None:
        chosen = signature.check_outputs(outputs) if outputs else signature.output_names
        if len(writers) >= _WRITERS_KEPT:
            writers.clear()
        found = writers[signature.name, outputs, typed] = AnswerWriter(loaded, signature, chosen, typed=typed)
    return found


def _id_field(request_id: str) -> bytes:
    """The response's id as it is serialized; last in the message, where any field may stand."""
    encoded = request_id.encode()
    return length_prefix(_ID, len(encoded)) + encoded if encoded else b""


def origin_field(origin: Origin) -> bytes:
    """The response parameter that says who gave a default answer; it may stand last in the message."""
    said = InferResponse()
    said.parameters[ANSWERED_BY_PARAMETER].string_param = origin_text(origin)
    written: bytes = said.SerializeToString()
    return written


class _Part(NamedTuple):
    """How one output's raw bytes are written.

    Attributes:
        name: The output.
        row_bytes: The size of a row; -1 for strings, which have no fixed size.
        before: What stands before the bytes: the message's head at the first, and a number's length.
        is_quick: Whether the bytes are known to be so few that they are copied at once.
    """

    name: str
    row_bytes: int
    before: bytes
    is_quick: bool


_Writers = dict[tuple[str, tuple[str, ...], bool], "AnswerWriter"]


class AnswerWriter:
    """Writes the ModelInferResponses of one version for one selection of outputs."""

    __slots__ = ("_base", "_fixed", "_names", "_only", "_parts", "_specs", "_typed")

    def __init__(
        self, loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...], *, typed: bool
    ) -> None:
        """Prepare what all answers have in common.

        Args:
            loaded: The version that answers.
            signature: The signature that it is called by.
            outputs: The names of outputs that it has.
            typed: Whether to write typed contents, if all datatypes have them.
        """
        by_name = {spec.name: spec for spec in signature.outputs}
        self._names = outputs
        self._specs = tuple(by_name[name] for name in outputs)
        self._typed = typed and all(datatype_name(spec) in CONTENTS for spec in self._specs)
        base = InferResponse(model_name=loaded.name, model_version=str(loaded.version))
        self._base: bytes = base.SerializeToString()
        self._fixed = all(None not in spec.shape for spec in self._specs)
        self._parts: dict[object, tuple[_Part, ...]] = {}
        self._only: dict[int, _Part] = {}  # where one output is all, and quick, by the number of rows

    def write(self, answer: Answer, request_id: str = "") -> bytes | None:
        """Serialize an answer, at once.

        Args:
            answer: What the model gave.
            request_id: The request's id, to be echoed.

        Returns:
            The bytes; None where that would take long: then use ``writing``.
        """
        only = self._only.get(answer.stop - answer.start)
        if only is not None and not request_id:  # what most models and most clients are like
            name, row_bytes, before, _ = only
            return before + answer.raw(name, row_bytes)
        if self._typed:
            if any(is_large(answer.tensor(name)) for name in self._names):
                return None
            return self._base + self._typed_outputs(answer) + _id_field(request_id)
        written = []
        for name, row_bytes, before, is_quick in self._parts_of(answer):
            written.append(before)
            if is_quick:
                written.append(answer.raw(name, row_bytes))
                continue
            tensor = answer.tensor(name)
            if row_bytes >= 0 or is_large(tensor):
                return None
            strings = join_strings(tensor.ravel().tolist())
            written += (length_prefix(_RAW_OUTPUTS, len(strings)), strings)
        return b"".join(written) + _id_field(request_id)

    def writing(self, answer: Answer, request_id: str, allowance: Allowance) -> Steps[bytes]:
        """Serialize an answer, in small steps.

        Args:
            answer: What the model gave.
            request_id: The request's id, to be echoed.
            allowance: Holds what is written.

        Raises:
            Overloaded: All requests together would hold too many bytes.
        """
        written: list[bytes | memoryview] = []
        if self._typed:
            written.append(self._base)
            for spec in self._specs:
                written += yield from writing_output(spec, answer.tensor(spec.name), allowance)
        else:
            for name, row_bytes, before, _ in self._parts_of(answer):
                written.append(before)
                if row_bytes < 0:
                    written += yield from raw_texts_of(_RAW_OUTPUTS, answer.tensor(name), allowance)
                else:
                    allowance.hold(row_bytes * answer.rows)
                    written.append(raw_bytes(answer.tensor(name)))
        written.append(_id_field(request_id))
        return (yield from joined(written))

    def _parts_of(self, answer: Answer) -> tuple[_Part, ...]:
        # Where the model fixes the outputs' shapes, the number of rows says all but the values.
        key = answer.stop - answer.start if self._fixed else self._shapes(answer)
        return self._parts.get(key) or self._learn(key, answer)

    def _shapes(self, answer: Answer) -> tuple[Shape, ...]:
        return tuple([answer.tensor(name).shape for name in self._names])

    def _learn(self, key: object, answer: Answer) -> tuple[_Part, ...]:
        """Write down what comes before each output's values in answers of this answer's shapes."""
        response = InferResponse()
        parts: list[_Part] = []
        for spec, shape in zip(self._specs, self._shapes(answer), strict=True):
            response.outputs.add(name=spec.name, datatype=datatype_name(spec), shape=shape)
            if spec.dtype == STRING:
                parts.append(_Part(spec.name, -1, b"", is_quick=False))
            else:
                row_bytes = spec.dtype.itemsize * math.prod(shape[1:])
                size = shape[0] * row_bytes
                before = length_prefix(_RAW_OUTPUTS, size)
                parts.append(_Part(spec.name, row_bytes, before, is_quick=not is_large_raw(size)))
        head = self._base + response.SerializeToString()
        if len(self._parts) >= _HEADS_KEPT:
            self._parts.clear()
            self._only.clear()
        found = self._parts[key] = (parts[0]._replace(before=head + parts[0].before), *parts[1:])
        if self._fixed and len(found) == 1 and found[0].is_quick:
            self._only[answer.stop - answer.start] = found[0]
        return found

    def _typed_outputs(self, answer: Answer) -> bytes:
        response = InferResponse()
        for spec in self._specs:
            tensor = answer.tensor(spec.name)
            datatype = datatype_name(spec)
            output = response.outputs.add(name=spec.name, datatype=datatype, shape=tensor.shape)
            getattr(output.contents, CONTENTS[datatype]).extend(tensor.ravel().tolist())
        written: bytes = response.SerializeToString()
        return written
