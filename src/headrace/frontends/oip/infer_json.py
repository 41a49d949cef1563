"""The bodies of ``/infer``: JSON, with tensors as JSON values or, in the binary extension, raw after it."""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from headrace.batching.request import NO_DEADLINE, Answer
from headrace.errors import InvalidRequest
from headrace.frontends.calls import HttpReply
from headrace.frontends.oip.messages import SIGNATURE_PARAMETER, deadline_after
from headrace.frontends.oip.tensors import (
    ARRAY_CODES,
    BFLOAT16,
    BYTES,
    WireTensor,
    check,
    datatype_name,
    is_exact,
    join_strings,
    refuse_parameters,
    spread_inputs,
)
from headrace.frontends.templates import Span, Templates
from headrace.servable import (
    CheckedInputs,
    RowLayout,
    Signature,
    TensorSpec,
    signature_named,
    spread_columns,
)
from headrace.tensors import Buffer

if TYPE_CHECKING:
    from headrace.loaded import LoadedVersion

JSON_LENGTH_HEADER = b"inference-header-content-length"

_Parameters = dict[str, msgspec.Raw] | None


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _Parameters = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: _Parameters = None
    outputs: list[_Output] | None = None


class _AnswerOutput(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    id: str = ""
    outputs: list[_AnswerOutput] = []


_decode_request = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


class OutputChoice(NamedTuple):
    """One output that is asked for.

    Attributes:
        spec: Which.
        binary: Whether to answer it in raw form.
    """

    spec: TensorSpec
    binary: bool


class JsonInference(NamedTuple):
    """A request, ready to be predicted.

    Attributes:
        inputs: Its inputs.
        outputs: The outputs that it asks for.
        request_id: What the client calls it; echoed.
        deadline: When its answer loses its worth, on the monotonic clock.
    """

    inputs: CheckedInputs
    outputs: tuple[OutputChoice, ...]
    request_id: str
    deadline: float


class _Known(NamedTuple):
    """What a template says: templates belong to their version, so there is no word of it."""

    json_bytes: int
    layout: RowLayout
    rows: int
    order: tuple[int, ...]
    outputs: tuple[OutputChoice, ...]
    spread: tuple[int, ...]


def decode_body(
    loaded: LoadedVersion,
    body: bytes,
    json_length: bytes | None,
    *,
    max_depth: int,
    deadline: float = NO_DEADLINE,
) -> JsonInference:
    """Decode a request; binary ones that repeat are recognised.

    Args:
        loaded: The version that the path means.
        body: The whole body.
        json_length: The header that says how much of it is JSON, if there is one.
        max_depth: How deep JSON may nest.
        deadline: The call's own; the request's timeout can only bring it forward.

    Raises:
        InvalidRequest: The request is wrong.
        Unsupported: It asks for shared memory or classification.
    """
    json_bytes = _json_bytes(body, json_length)
    templates = cast("Templates[_Known] | None", loaded.codec_cache.get(decode_body))
    found = templates.find(body) if templates is not None else None
    if found is not None:
        known, columns = found
        if known.json_bytes == json_bytes:
            ordered: tuple[Buffer, ...] = tuple([columns[i] for i in known.order])
            if known.spread:
                ordered = spread_columns(ordered, known.spread, known.layout, known.rows)
            inputs = CheckedInputs(known.layout, ordered, known.rows)
            return JsonInference(inputs, known.outputs, "", deadline)
    return _parse(loaded, body, json_bytes, max_depth, deadline)


def _parse(
    loaded: LoadedVersion, body: bytes, json_bytes: int, max_depth: int, deadline: float
) -> JsonInference:
    request = _parsed(body if json_bytes == len(body) else body[:json_bytes])
    parameters = request.parameters or {}
    signature = signature_named(loaded.signatures, _signature_name(parameters))
    spans = _binary_spans(request.inputs, json_bytes, len(body))
    tensors = [
        WireTensor(
            one.name, one.datatype, tuple(one.shape), body[slice(*span)] if span else _values(one, max_depth)
        )
        for one, span in zip(request.inputs, spans, strict=True)
    ]
    inputs = check(signature, tensors)
    outputs = _choices(signature, request)
    if "timeout" in parameters:
        deadline = min(deadline, deadline_after(_parameter(parameters, "timeout", int)))
    inference = JsonInference(inputs, outputs, request.id or "", deadline)
    if not request.id and "timeout" not in parameters:
        binary = [span for span in spans if span is not None]
        if len(binary) == len(spans):
            _learn(loaded, body, json_bytes, signature, list(zip(tensors, binary, strict=True)), inference)
    return inference


def _learn(
    loaded: LoadedVersion,
    body: bytes,
    json_bytes: int,
    signature: Signature,
    came: list[tuple[WireTensor, Span]],
    inference: JsonInference,
) -> None:
    layout = inference.inputs.layout
    by_name = {tensor.name: (index, tensor) for index, (tensor, _) in enumerate(came)}
    if not all(is_exact(spec, by_name[spec.name][1]) for spec in layout.specs):
        return
    order = tuple(by_name[spec.name][0] for spec in layout.specs)
    spread = spread_inputs(signature, [by_name[spec.name][1].shape[0] for spec in layout.specs]) or ()
    known = _Known(json_bytes, layout, inference.inputs.rows, order, inference.outputs, spread)
    templates = cast("Templates[_Known]", loaded.codec_cache.setdefault(decode_body, Templates()))
    templates.learn(body, [span for _, span in came], known)


# ---- Requests ----


def _json_bytes(body: bytes, header: bytes | None) -> int:
    if header is None:
        return len(body)
    if not header.isdigit() or len(header) > len(str(len(body))) or int(header) > len(body):
        raise InvalidRequest(
            f"expected at most the body's {len(body)} bytes, got {header.decode('latin-1')!r:.40}",
            field="Inference-Header-Content-Length",
        )
    return int(header)


def _parsed(text: bytes) -> _Request:
    try:
        return _decode_request(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{error}; expected an inference request", field="body") from error
    except RecursionError as error:
        raise InvalidRequest("the JSON nests too deep; send data flat", field="body") from error


def _signature_name(parameters: dict[str, msgspec.Raw]) -> str:
    if SIGNATURE_PARAMETER not in parameters:
        return ""
    try:
        return msgspec.json.decode(parameters[SIGNATURE_PARAMETER], type=str)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{error}", field=SIGNATURE_PARAMETER) from error


def _parameter(parameters: dict[str, msgspec.Raw], name: str, kind: Callable[..., object]) -> int:
    try:
        value: int = msgspec.json.decode(parameters[name], type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{error}", field=name) from error
    return value


def _binary_spans(inputs: Sequence[_Input], start: int, end: int) -> list[Span | None]:
    spans: list[Span | None] = []
    for tensor in inputs:
        parameters = tensor.parameters
        if parameters:
            refuse_parameters(parameters, tensor.name)
        if not parameters or "binary_data_size" not in parameters:
            spans.append(None)
            continue
        if tensor.data is not msgspec.UNSET:
            raise InvalidRequest("came as data and as binary data; use one of them", field=tensor.name)
        size = _parameter(parameters, "binary_data_size", int)
        if not 0 <= size <= end - start:
            raise InvalidRequest(
                f"expected {size} binary bytes after the JSON, got {end - start}; say the JSON's length in "
                "Inference-Header-Content-Length and the tensor's in binary_data_size",
                field=tensor.name,
            )
        spans.append((start, start + size))
        start += size
    if start != end:
        raise InvalidRequest(
            f"{end - start} bytes come after the last input; each input's binary_data_size says its own",
            field="body",
        )
    return spans


def _choices(signature: Signature, request: _Request) -> tuple[OutputChoice, ...]:
    parameters = request.parameters
    binary = bool(
        parameters
        and "binary_data_output" in parameters
        and _parameter(parameters, "binary_data_output", bool)
    )
    if not request.outputs:
        return tuple(OutputChoice(spec, binary) for spec in signature.outputs)
    by_name = {spec.name: spec for spec in signature.outputs}
    signature.check_outputs(output.name for output in request.outputs)
    return tuple(OutputChoice(by_name[one.name], _wants_binary(one, binary)) for one in request.outputs)


def _wants_binary(output: _Output, default: bool) -> bool:
    if not output.parameters:
        return default
    refuse_parameters(output.parameters, output.name)
    if "binary_data" not in output.parameters:
        return default
    return bool(_parameter(output.parameters, "binary_data", bool))


# ---- Values in JSON ----


def _values(tensor: _Input, max_depth: int) -> bytes | list[bytes]:
    if isinstance(tensor.data, msgspec.UnsetType):
        raise InvalidRequest("expected data, or binary_data_size in its parameters", field=tensor.name)
    if len(tensor.shape) > max_depth:
        raise InvalidRequest(
            f"expected at most {max_depth} dimensions, got {len(tensor.shape)}", field=tensor.name
        )
    return _packed(tensor, _flat_values(tensor, bytes(tensor.data)))


_KINDS: dict[str, type] = {
    **dict.fromkeys(ARRAY_CODES, int),
    **dict.fromkeys(("FP16", "FP32", "FP64"), float),
    "BOOL": bool,
    BYTES: str,
}


@lru_cache(maxsize=256)
def _list_decoder(kind: type, depth: int) -> Callable[[bytes], list[Any]]:
    nested: object = kind
    for _ in range(depth):
        nested = list[nested]  # type: ignore[valid-type]
    return msgspec.json.Decoder(nested).decode


def _flat_values(tensor: _Input, text: bytes) -> list[Any]:
    """Decode ``data``, which may be flat or nested like its shape; the values' kind is the datatype's."""
    kind = _KINDS.get(tensor.datatype)
    if kind is None:
        way_out = (
            "send it as binary data"
            if tensor.datatype == BFLOAT16
            else f"expected one of {', '.join(_KINDS)}"
        )
        raise InvalidRequest(
            f"datatype {tensor.datatype!r:.40} has no JSON form; {way_out}", field=tensor.name
        )
    is_nested = len(tensor.shape) > 1 and text[1:].lstrip()[:1] == b"["
    depth = len(tensor.shape) if is_nested else 1
    try:
        values = _list_decoder(kind, depth)(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{error}; expected {tensor.datatype} values, flat or nested like the shape",
            field=f"{tensor.name}.data",
        ) from error
    return _flattened(tensor, values) if is_nested else values


def _flattened(tensor: _Input, values: list[Any]) -> list[Any]:
    level = [values]
    for size in tensor.shape:
        if any(len(one) != size for one in level):
            raise InvalidRequest(
                f"expected lists nested like the shape {tensor.shape}, got one of another length",
                field=f"{tensor.name}.data",
            )
        level = list(chain.from_iterable(level))
    return level


def _packed(tensor: _Input, values: list[Any]) -> bytes | list[bytes]:
    datatype = tensor.datatype
    if datatype == BYTES:
        return [text.encode() for text in values]
    if datatype == "BOOL":
        return bytes(values)
    if datatype == "FP16":
        with np.errstate(over="ignore"):  # too large is infinity, as for FP32
            return np.array(values, np.float16).tobytes()
    try:
        return array.array(ARRAY_CODES[datatype], values).tobytes()
    except OverflowError as error:
        raise InvalidRequest(f"a value does not fit in {datatype}", field=f"{tensor.name}.data") from error


# ---- Answers ----


def encode_answer(loaded: LoadedVersion, inference: JsonInference, answer: Answer) -> HttpReply:
    """Write an answer.

    JSON has no NaN and no infinity: they are null there; the binary form has them.

    Args:
        loaded: The version that answered.
        inference: The request.
        answer: What the model gave.

    Raises:
        InvalidRequest: Strings that are not text were asked for as JSON.
    """
    outputs, binary = [], []
    for spec, is_binary in inference.outputs:
        tensor = answer.tensor(spec.name)
        described = _AnswerOutput(spec.name, datatype_name(spec), list(tensor.shape))
        if is_binary:
            flat = tensor.ravel()
            raw = join_strings(flat.tolist()) if described.datatype == BYTES else flat.tobytes()
            described.parameters = {"binary_data_size": len(raw)}
            binary.append(raw)
        else:
            described.data = _json_values(spec, tensor.ravel().tolist())
        outputs.append(described)
    head = _encode(_Answer(loaded.name, str(loaded.version), inference.request_id, outputs))
    if not binary:
        return HttpReply(head)
    headers = ((b"content-type", b"application/octet-stream"), (JSON_LENGTH_HEADER, b"%d" % len(head)))
    return HttpReply(b"".join([head, *binary]), headers=headers)


def _json_values(spec: TensorSpec, values: list[Any]) -> list[Any]:
    if datatype_name(spec) != BYTES:
        return values
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "the answer is not UTF-8 text, so JSON cannot hold it; ask for it with binary_data",
            field=spec.name,
        ) from error
