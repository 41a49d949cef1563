"""Decoding of ModelInferRequest messages into checked inputs.

Repeated requests are recognised by template and never parsed; the result is the same as that of parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_OIP, Array
from headrace.frontends.oip.datatypes import CONTENTS, refuse_texts
from headrace.frontends.oip.parameters import (
    SIGNATURE_PARAMETER,
    final_parameter,
    refuse_parameters,
    signature_parameter,
    timeout_parameter,
    version_number,
)
from headrace.frontends.oip.response_messages import AnswerWriter, writer_for
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, fields
from headrace.frontends.wire.repeated_requests import Learnt, Located, RepeatedRequests
from headrace.frontends.wire.tensor_templates import MOST_FIELDS, Span
from headrace.frontends.wire.tensors import (
    BYTES,
    WireTensor,
    check_names,
    checking,
    numbers,
    texts_of,
    wire_shape,
)
from headrace.frontends.wire.text_templates import Found
from headrace.frontends.wire.texts import TEXT_BYTES, gathering
from headrace.frontends.wire.time_slicer import Steps
from headrace.lifecycle.leases import Lease
from headrace.model.servable import (
    CheckedInputs,
    Signature,
    signature_named,
)

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.serving.loaded_version import LoadedVersion

InferRequest = protos.message("inference.ModelInferRequest")

REQUEST_ID = 3
"""Field number of ModelInferRequest.id."""

_RAW_INPUTS = 7  # ModelInferRequest.raw_input_contents


class Inference(NamedTuple):
    """A decoded request, ready for prediction.

    Attributes:
        loaded: The version that it asks for.
        inputs: The inputs.
        writer: Writes the answer.
        request_id: The client's id for the request, which is returned.
        deadline: Deadline in seconds on the monotonic clock.
        wants_final: Whether the client asks for a response that tells the end of a stream of answers.
    """

    loaded: LoadedVersion
    inputs: CheckedInputs
    writer: AnswerWriter
    request_id: str
    deadline: float
    wants_final: bool = False


class InferDecoder:
    """Decodes ModelInferRequests, and learns those that repeat.

    Attributes:
        recognise: Decodes a request without parsing it; see ``RepeatedRequests.recognise``.
    """

    def __init__(self, loaded: Callable[[str, int | None], LoadedVersion]) -> None:
        """Start without templates.

        Args:
            loaded: Finds the loaded version for a model and a version number.
        """
        self._loaded = loaded
        self._repeated: RepeatedRequests[AnswerWriter] = RepeatedRequests({REQUEST_ID: -1, _RAW_INPUTS: -1})
        self.recognise = self._repeated.recognise

    def parse(self, message: bytes, deadline: float, budget: RequestBudget) -> Steps[Inference]:
        """Decode a request in small steps, and learn to recognise similar ones.

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
        wants_final = False
        if request.parameters:
            deadline = min(deadline, timeout_parameter(request.parameters))
            wants_final = final_parameter(request.parameters)
        if (
            is_raw
            and loaded.streams is None
            and all(name == SIGNATURE_PARAMETER for name in request.parameters)
        ):
            asked = partial(self._loaded, request.model_name, version)
            learnt = Learnt(asked, loaded, signature, inputs, writer, request.id)
            self._repeated.learn(message, tensors, learnt, partial(_located, message, bool(request.id)))
        return Inference(loaded, inputs, writer, request.id, deadline, wants_final)


def _located(message: bytes, has_id: bool, tensors: Mapping[str, WireTensor]) -> Located | None:
    spans = _spans(message, len(tensors), has_id=has_id)
    if spans is None:
        return None
    places = enumerate(tensors.values(), start=int(has_id))
    return Located(spans, {tensor.name: Found(place, tensor.shape) for place, tensor in places})


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
