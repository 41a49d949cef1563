"""The bodies of ``/infer``: JSON, with tensors as JSON values or, in the binary extension, raw after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.batching.request import Answer
from headrace.frontends.calls import JSON_HEADERS, HttpCall, HttpReply, origin_text
from headrace.frontends.oip.datatypes import datatype_name, refuse_texts
from headrace.frontends.oip.json_misfits import INFER, wrong_body, wrong_count, wrong_parameter
from headrace.frontends.oip.json_values import InferInput, Parameters, from_json
from headrace.frontends.oip.parameters import (
    ANSWERED_BY_PARAMETER,
    SIGNATURE_PARAMETER,
    deadline_after,
    refuse_parameters,
)
from headrace.frontends.wire.json_text import check_depth
from headrace.frontends.wire.tensor_templates import Span
from headrace.frontends.wire.tensors import (
    BYTES,
    WireTensor,
    check,
    check_names,
    raw_bytes,
    texts_of,
)
from headrace.frontends.wire.texts import join_strings
from headrace.frontends.wire.time_slicer import Steps
from headrace.model.missing_values import Expansion
from headrace.model.servable import (
    CheckedInputs,
    Signature,
    TensorSpec,
    signature_named,
)

if TYPE_CHECKING:
    from headrace.frontends.oip.repeated_bodies import RepeatedBodies
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.serving.loaded_version import LoadedVersion

Value = TypeVar("Value", bool, int, str)

Headers = tuple[tuple[bytes, bytes], ...]

JSON_LENGTH_HEADER = b"inference-header-content-length"


class _Output(msgspec.Struct):
    name: str
    parameters: Parameters = None


class InferRequest(msgspec.Struct):
    """The JSON of a body."""

    inputs: list[InferInput]
    id: str | None = None
    parameters: Parameters = None
    outputs: list[_Output] | None = None


class _AnswerOutput(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: list[Any] | msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] | None = None
    outputs: list[_AnswerOutput] = []


_decode_request = msgspec.json.Decoder(InferRequest).decode
_encode = msgspec.json.Encoder().encode


class OutputChoice(NamedTuple):
    """One requested output.

    Attributes:
        spec: The output.
        binary: Whether it is returned in raw form.
    """

    spec: TensorSpec
    binary: bool


class JsonInference(NamedTuple):
    """A decoded request, ready for prediction.

    Attributes:
        inputs: The inputs.
        outputs: The requested outputs.
        request_id: The client's id for the request, which is returned.
        deadline: Deadline in seconds on the monotonic clock.
    """

    inputs: CheckedInputs
    outputs: tuple[OutputChoice, ...]
    request_id: str
    deadline: float


def parse(
    loaded: LoadedVersion,
    call: HttpCall,
    json_bytes: int,
    max_depth: int,
    budget: RequestBudget,
    repeated: RepeatedBodies,
) -> Steps[JsonInference]:
    """Decode a request whose JSON is short, in small steps, and learn to recognise similar ones.

    Args:
        loaded: The version in the path; the caller keeps it loaded.
        call: The call.
        json_bytes: Length of the JSON in its body, in bytes.
        max_depth: Largest nesting depth of the JSON.
        budget: Limits the cost of the request.
        repeated: Learns the request.

    Raises:
        InvalidRequest: The request is invalid.
        TooLarge: It has too many values.
        Unsupported: It asks for shared memory, classification or a sequence, or names an unsupported
            content_type.
    """
    body = call.body
    text = body if json_bytes == len(body) else body[:json_bytes]
    check_depth(text, max_depth)
    request = parsed(text)
    specs = input_specs(loaded, request)
    spans = binary_spans(request.inputs, json_bytes, len(body))
    tensors = []
    for one, span in zip(request.inputs, spans, strict=True):
        spec = specs[one.name]
        tensors.append(
            (yield from from_binary(one, spec, body[slice(*span)], budget))
            if span
            else (yield from from_json(one, spec, budget))
        )
    inference = finished(loaded, request, tensors, call.deadline, budget)
    if not request.id and "timeout" not in (request.parameters or ()):
        binary = [span for span in spans if span is not None]
        if len(binary) == len(spans):
            repeated.learn(loaded, body, json_bytes, list(zip(tensors, binary, strict=True)), inference)
    return inference


def input_specs(loaded: LoadedVersion, request: InferRequest) -> dict[str, TensorSpec]:
    """Check the names and datatypes of a request's inputs, and return their specs by name.

    Raises:
        InvalidRequest: An input is missing, unknown, repeated, or sends texts for numbers.
        NotFound: There is no such signature.
        Unsupported: The request asks for something that ``refuse_parameters`` refuses.
    """
    if request.parameters:
        refuse_parameters(request.parameters, "parameters")
    signature = signature_of(loaded, request)
    check_names(signature, (one.name for one in request.inputs))
    specs = {spec.name: spec for spec in signature.inputs}
    for one in request.inputs:
        refuse_texts(specs[one.name], one.datatype, one.shape)
    return specs


def from_binary(tensor: InferInput, spec: TensorSpec, raw: bytes, budget: RequestBudget) -> Steps[WireTensor]:
    """Decode an input in raw form; strings in small steps.

    Args:
        tensor: The input as received.
        spec: The expected input.
        raw: Its bytes.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: The strings do not fill the shape.
        TooLarge: The request has too many strings.
    """
    budget.hold(len(raw))  # for a copy, or the decoded strings
    found = WireTensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw)
    if found.datatype == BYTES:
        found = found._replace(values=(yield from texts_of(found, raw, budget)))
    return found


def finished(
    loaded: LoadedVersion,
    request: InferRequest,
    tensors: list[WireTensor],
    deadline: float,
    budget: Expansion,
) -> JsonInference:
    """Check a request's tensors, and read the rest of the request.

    Args:
        loaded: The version in the path.
        request: The JSON of the body.
        tensors: The inputs.
        deadline: The call's own deadline.
        budget: Limits the memory for repeating one-row inputs.

    Raises:
        InvalidRequest: The request is invalid.
    """
    signature = signature_of(loaded, request)
    try:
        inputs = check(signature, tensors, budget)
    except InvalidRequest as error:
        raise wrong_count(request.inputs, tensors) or error from error
    outputs = _choices(signature, request)
    parameters = request.parameters or {}
    if "timeout" in parameters:
        deadline = min(deadline, deadline_after(_parameter(parameters, "timeout", int)))
    return JsonInference(inputs, outputs, request.id or "", deadline)


# ---- Requests ----


def json_bytes_of(body: bytes, header: bytes | None) -> int:
    """Return the length of the JSON in a body, in bytes.

    Raises:
        InvalidRequest: The header is not a number, or exceeds the body's length.
    """
    if header is None:
        return len(body)
    if not header.isdigit() or len(header) > len(str(len(body))) or int(header) > len(body):
        raise InvalidRequest(
            f"expected at most the body's {len(body)} bytes, got {header.decode('latin-1')!r:.40}",
            field="Inference-Header-Content-Length",
        )
    return int(header)


def parsed(text: bytes) -> InferRequest:
    """Parse the JSON of a body; the inputs' values stay text.

    Raises:
        InvalidRequest: The JSON is not an inference request.
    """
    try:
        return _decode_request(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise wrong_body(text, error, INFER) from error
    except RecursionError as error:
        raise InvalidRequest("the JSON is nested too deeply; send flat data", field="body") from error


def signature_of(loaded: LoadedVersion, request: InferRequest) -> Signature:
    """Return the signature that a request asks for.

    Raises:
        InvalidRequest: Its name is not a string.
        NotFound: There is no signature of that name.
    """
    return signature_named(loaded.signatures, _signature_name(request.parameters or {}))


def _signature_name(parameters: dict[str, msgspec.Raw]) -> str:
    if SIGNATURE_PARAMETER not in parameters:
        return ""
    return _parameter(parameters, SIGNATURE_PARAMETER, str)


def _parameter(parameters: dict[str, msgspec.Raw], name: str, kind: type[Value], of: str = "") -> Value:
    try:
        return msgspec.json.decode(parameters[name], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise wrong_parameter(name, bytes(parameters[name]), kind, of) from error


def binary_spans(inputs: Sequence[InferInput], start: int, end: int) -> list[Span | None]:
    """Return where each raw input lies in the body, as start and end; None for inputs in JSON.

    Raises:
        InvalidRequest: The sizes of the inputs do not add up to that of the body.
        Unsupported: An input has a parameter that ``refuse_parameters`` refuses.
    """
    spans: list[Span | None] = []
    for tensor in inputs:
        parameters = tensor.parameters
        if parameters:
            refuse_parameters(parameters, tensor.name)
        if not parameters or "binary_data_size" not in parameters:
            spans.append(None)
            continue
        if tensor.data is not msgspec.UNSET:
            raise InvalidRequest("given both as data and as binary data; use one of them", field=tensor.name)
        size = _parameter(parameters, "binary_data_size", int, tensor.name)
        if not 0 <= size <= end - start:
            raise InvalidRequest(
                f"expected binary_data_size from 0 to {end - start}, the bytes left in the body, got {size}; "
                "set it to the input's size, and Inference-Header-Content-Length to the JSON's length",
                field=tensor.name,
            )
        spans.append((start, start + size))
        start += size
    if start != end:
        raise InvalidRequest(
            f"{end - start} bytes follow the last input; set each input's binary_data_size to its own size",
            field="body",
        )
    return spans


def _choices(signature: Signature, request: InferRequest) -> tuple[OutputChoice, ...]:
    parameters = request.parameters
    binary = bool(
        parameters
        and "binary_data_output" in parameters
        and _parameter(parameters, "binary_data_output", bool)
    )
    if not request.outputs:
        return tuple(OutputChoice(spec, binary) for spec in signature.outputs)
    by_name = {spec.name: spec for spec in signature.outputs}
    signature.check_outputs([output.name for output in request.outputs])
    return tuple(OutputChoice(by_name[one.name], _wants_binary(one, binary)) for one in request.outputs)


def _wants_binary(output: _Output, default: bool) -> bool:
    if not output.parameters:
        return default
    refuse_parameters(output.parameters, output.name)
    if "binary_data" not in output.parameters:
        return default
    return _parameter(output.parameters, "binary_data", bool, output.name)


# ---- Answers ----


def encode_answer(loaded: LoadedVersion, inference: JsonInference, answer: Answer) -> HttpReply:
    """Serialize an answer in one step.

    JSON has no NaN and no infinity, so they become null. The binary form keeps them.

    Args:
        loaded: The version that answered.
        inference: The request.
        answer: The answer.

    Raises:
        InvalidRequest: Strings that are not UTF-8 were requested as JSON.
    """
    pieces, headers = pieces_of(loaded, inference, answer, {}, {})
    return HttpReply(b"".join(pieces), headers=headers)


def pieces_of(
    loaded: LoadedVersion,
    inference: JsonInference,
    answer: Answer,
    printed: Mapping[str, msgspec.Raw],
    written: Mapping[str, list[bytes | memoryview]],
) -> tuple[list[bytes | memoryview], Headers]:
    """Return the body of an answer in pieces, and its headers.

    Args:
        loaded: The version that answered.
        inference: The request.
        answer: The answer.
        printed: Outputs already serialized as JSON, by name.
        written: Outputs already serialized in raw form, by name.

    Raises:
        InvalidRequest: Strings that are not UTF-8 were requested as JSON.
    """
    outputs, binary = [], list[bytes | memoryview]()
    for spec, is_binary in inference.outputs:
        tensor = answer.tensor(spec.name)
        described = _AnswerOutput(spec.name, datatype_name(spec), list(tensor.shape))
        if is_binary:
            raw = written.get(spec.name) or raw_values(tensor)
            described.parameters = {"binary_data_size": sum(map(len, raw))}
            binary += raw
        else:
            described.data = printed.get(spec.name) or json_values(spec, tensor.ravel().tolist())
        outputs.append(described)
    found = _Answer(loaded.name, str(loaded.version), inference.request_id, outputs=outputs)
    if answer.outputs.origin.is_default:
        found.parameters = {ANSWERED_BY_PARAMETER: origin_text(answer.origin)}
    head = _encode(found)
    if not any(is_binary for _, is_binary in inference.outputs):
        return [head], JSON_HEADERS
    return [head, *binary], (
        (b"content-type", b"application/octet-stream"),
        (JSON_LENGTH_HEADER, b"%d" % len(head)),
    )


def raw_values(tensor: Array) -> list[bytes | memoryview]:
    """Return an output in raw form, in pieces."""
    return [join_strings(tensor.ravel().tolist())] if tensor.dtype == STRING else [raw_bytes(tensor)]


def json_values(spec: TensorSpec, values: list[Any]) -> list[Any]:
    """Return an output's values as JSON values.

    Raises:
        InvalidRequest: The values are strings that are not UTF-8.
    """
    if datatype_name(spec) != BYTES:
        return values
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "the output is not UTF-8 text, so JSON cannot represent it; request it with binary_data of "
            "…/infer, or over gRPC",
            field=spec.name,
        ) from error
