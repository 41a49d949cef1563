"""Decoding of ModelInferRequest messages into checked inputs.

Repeated requests are recognised by template and never parsed; the result is the same as that of parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple
from weakref import ReferenceType, ref

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_OIP, Array, Buffer
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.oip.datatypes import refuse_texts
from headrace.frontends.oip.parameters import (
    SIGNATURE_PARAMETER,
    refuse_parameters,
    signature_parameter,
    timeout_parameter,
    version_number,
)
from headrace.frontends.oip.response_messages import AnswerWriter, writer_for
from headrace.frontends.oip.typed_contents import CONTENTS
from headrace.frontends.wire import protos
from headrace.frontends.wire.cooperative_steps import Steps
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, fields
from headrace.frontends.wire.templates import MOST_FIELDS, Serialized, Span, Templates
from headrace.frontends.wire.tensors import (
    BYTES,
    WireTensor,
    check_names,
    checking,
    numbers,
    spread_if_repeatable,
    texts_of,
    wire_shape,
)
from headrace.frontends.wire.text_templates import Found, TextTemplates, is_packable
from headrace.frontends.wire.texts import TEXT_BYTES, gathering
from headrace.lifecycle.handle import Lease
from headrace.model.servable import (
    CheckedInputs,
    RowLayout,
    Signature,
    signature_named,
    spread_columns,
    takes_packed,
)

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.serving.loaded_version import LoadedVersion

InferRequest = protos.message("inference.ModelInferRequest")

REQUEST_ID = 3
"""Field number of ModelInferRequest.id."""

_RAW_INPUTS = 7  # ModelInferRequest.raw_input_contents

_tuple = tuple.__new__


class Inference(NamedTuple):
    """A decoded request, ready for prediction.

    Attributes:
        loaded: The version that it asks for.
        inputs: The inputs.
        writer: Writes the answer.
        request_id: The client's id for the request, which is returned.
        deadline: Deadline in seconds on the monotonic clock.
    """

    loaded: LoadedVersion
    inputs: CheckedInputs
    writer: AnswerWriter
    request_id: str
    deadline: float


Recognised = tuple["LoadedVersion", CheckedInputs, AnswerWriter, str, float]
"""The fields of an Inference as a plain tuple."""


class _Known(NamedTuple):
    """The contents of a template; the weak reference lets an unloaded version be freed."""

    model: str
    version: int | None
    loaded: ReferenceType[LoadedVersion]
    layout: RowLayout
    rows: int
    writer: AnswerWriter
    is_plain: bool
    """Whether the raw tensors are the columns unchanged: no id, no reordering, nothing spread."""
    has_id: bool
    reorder: Callable[[Sequence[Serialized]], tuple[Serialized, ...]] | None
    spread: tuple[int, ...]


class InferDecoder:
    """Decodes ModelInferRequests, and learns templates of those that repeat."""

    def __init__(self, loaded: Callable[[str, int | None], LoadedVersion]) -> None:
        """Start without templates.

        Args:
            loaded: Finds the loaded version for a model and a version number.
        """
        self._loaded = loaded
        self._templates: Templates[_Known] = Templates()
        self._texts: TextTemplates[_Known] = TextTemplates({REQUEST_ID: -1, _RAW_INPUTS: -1})

    def recognise(self, message: Serialized, deadline: float = NO_DEADLINE) -> Recognised | None:
        """Decode a request without parsing it, if a similar one was parsed before; else return None.

        Args:
            message: The serialized ModelInferRequest.
            deadline: The call's own deadline.

        Raises:
            HeadraceError: The version is no longer available.
        """
        found = self._templates.find(message)
        if found is None:
            if self._texts.is_empty or not isinstance(message, bytes):
                return None
            return self._recognise_texts(message, deadline)
        (model, version, known, layout, rows, writer, is_plain, has_id, reorder, spread), parts = found
        columns: tuple[Buffer, ...] = parts
        loaded = self._loaded(model, version)
        if known() is not loaded:
            return None
        request_id = ""
        if not is_plain:
            if has_id:
                decoded = _decoded(parts[0])
                if decoded is None:
                    return None
                request_id, columns, parts = decoded, parts[1:], parts[1:]
            if reorder is not None:
                columns = reorder(parts)
            if spread:
                columns = spread_columns(columns, spread, layout, rows)
        # A named tuple made without its slow constructor, since most requests pass here.
        inputs: CheckedInputs = _tuple(CheckedInputs, (layout, columns, rows))
        return loaded, inputs, writer, request_id, deadline

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

    def parse(self, message: bytes, deadline: float, budget: RequestBudget) -> Steps[Inference]:
        """Decode a request in small steps, and learn its template.

        Args:
            message: The serialized ModelInferRequest.
            deadline: The call's own deadline; the request's timeout can only bring it forward.
            budget: Limits the cost of the request.

        Returns:
            The request. Submit it in the same turn of the event loop: nothing else keeps its version loaded.

        Raises:
            HeadraceError: The request is invalid, or there is no such version.
        """
        request = protos.parse(InferRequest, message, counted=True)
        if len(message) > AT_ONCE_BYTES:
            yield  # parsing has copied a large message
        if request.parameters:
            refuse_parameters(request.parameters, "parameters")
        version = version_number(request.model_version)
        with Lease(self._loaded(request.model_name, version)) as loaded:
            signature = signature_named(loaded.signatures, signature_parameter(request.parameters))
            budget.most_rows = loaded.config.batching.max_queue_rows
            tensors = yield from _tensors(request, signature, budget)
            inputs = yield from checking(signature, tensors, budget)
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


def _decoded(request_id: Serialized) -> str | None:
    """Return a request's id; None if it is not UTF-8, for which parsing raises the right error."""
    try:
        return str(request_id, "utf-8")
    except UnicodeDecodeError:
        return None


def _spans(message: bytes, tensors: int, *, has_id: bool) -> list[Span] | None:
    """Return where the id, if any, and the tensors lie; None if the fields come in another order."""
    wanted = [*[REQUEST_ID] * has_id, *[_RAW_INPUTS] * tensors]
    try:
        found = [
            field
            for field in fields(message, steps=iter(range(MOST_FIELDS)))
            if field.number in (REQUEST_ID, _RAW_INPUTS) and field.wire_type == LENGTH_DELIMITED
        ]
    except ValueError:  # too many fields, or a group: legal, but no client of this protocol sends it
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


def _tensors(request: protos.Message, signature: Signature, budget: RequestBudget) -> Steps[list[WireTensor]]:
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
                "given both in contents and in raw_input_contents; use one of them", field=tensor.name
            )
        shape = wire_shape(tensor.name, tensor.shape)
        budget.rows(shape[0] if shape else 0, tensor.name)
        refuse_texts(specs[tensor.name], tensor.datatype, shape)
        values = raw[index] if raw else b""  # read only once, as each access copies
        found = WireTensor(tensor.name, tensor.datatype, shape, values)
        if len(values) > AT_ONCE_BYTES:
            yield
        if not raw:
            found = found._replace(values=(yield from _typed_values(tensor, budget)))
        elif found.datatype == BYTES:
            found = found._replace(values=(yield from texts_of(found, values, budget)))
        tensors.append(found)
    return tensors


def _typed_values(tensor: protos.Message, budget: RequestBudget) -> Steps[bytes | Array]:
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
        budget.hold(TEXT_BYTES * len(values))
        return (yield from gathering(values))
    return numbers(tensor.name, datatype, BY_OIP[datatype].dtype, values).tobytes()
