"""Large JSON bodies and answers of ``/infer``, processed in slices with other requests in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import STRING, Array, held_bytes
from headrace.batching.request import Answer
from headrace.frontends.calls import HttpCall, HttpReply
from headrace.frontends.oip import infer_bodies
from headrace.frontends.oip.infer_bodies import JsonInference
from headrace.frontends.oip.json_values import InferInput, check_given, from_values
from headrace.frontends.wire import json_output, long_lists
from headrace.frontends.wire.json_text import Json, parse_in_slices
from headrace.frontends.wire.request_budget import RequestBudget, check_name
from headrace.frontends.wire.tensors import WireTensor
from headrace.frontends.wire.texts import raw_texts
from headrace.frontends.wire.time_slicer import Steps, TimeSlicer, in_steps, joined
from headrace.model.servable import TensorSpec

_REST_VALUES, _REST_VALUES_AN_INPUT = 8192, 16
"""Maximum number of values outside the inputs' data, and how many more each input allows.

Parsing that many takes a few ms.
"""
_CHARACTERS_A_VALUE = 128
_BITS_A_VALUE = 64
_LOOKED_AT_ONCE = 512
_WRONG_INPUTS = 256
"""How many inputs a request may have beyond twice the model's before an error stops naming the wrong ones.

Beyond that, the error gives only their number.
"""

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion


_RAW_AT_ONCE_BYTES = 1024 * 1024


async def decode(
    service: Service,
    loaded: LoadedVersion,
    call: HttpCall,
    json_bytes: int,
    budget: RequestBudget,
) -> JsonInference:
    """Decode a request whose JSON is large.

    Args:
        service: The Service.
        loaded: The version in the path; the caller keeps it loaded.
        call: The call.
        json_bytes: Length of the JSON in its body, in bytes.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: The request is invalid.
        TooLarge: It has too many values.
        Unsupported: It asks for shared memory, classification or a sequence, or names an unsupported
            content_type.
    """
    body = call.body
    async with service.slicer as slicer:
        text = body if json_bytes == len(body) else body[:json_bytes]
        max_depth = service.limits.max_json_depth
        document = await parse_in_slices(text, max_depth, budget, slicer, nan=False)
        data = list[Json]()
        try:
            data += _take_data(document, loaded)
            await _check_rest(document, len(data), slicer)
            request = infer_bodies.parsed(msgspec.json.encode(document))
            specs = infer_bodies.input_specs(loaded, request)
            spans = infer_bodies.binary_spans(request.inputs, json_bytes, len(body))
            tensors = [
                await in_steps(
                    infer_bodies.from_binary(one, specs[one.name], body[slice(*span)], budget), slicer
                )
                if span
                else await in_steps(_from_values(one, specs[one.name], came, budget), slicer)
                for one, span, came in zip(request.inputs, spans, data, strict=True)
            ]
        except BaseException:
            await long_lists.given_back(
                [document, data], slicer
            )  # on success the values are consumed, and the rest is small
            raise
    return infer_bodies.finished(loaded, request, tensors, call.deadline, budget)


async def _check_rest(document: Json, inputs: int, slicer: TimeSlicer) -> None:
    """Limit the texts and values of a body without its data, since it is parsed in one step."""
    left, found, most = [document], 1, _REST_VALUES + inputs * _REST_VALUES_AN_INPUT
    looked_at = 0
    while left:
        one = left.pop()
        if isinstance(one, str):
            check_name(len(one), "body")
            found += len(one) // _CHARACTERS_A_VALUE
        elif isinstance(one, int):  # writing 4,000 digits takes as long as many texts
            found += one.bit_length() // _BITS_A_VALUE
        elif isinstance(one, dict | list):
            found += len(one)
            if found <= most:
                left += one.values() if isinstance(one, dict) else one
                found += sum(map(len, one)) // _CHARACTERS_A_VALUE if isinstance(one, dict) else 0
        if found > most:
            raise TooLarge(
                f"expected at most {most} names, shapes, parameters and outputs besides the data, got more; "
                f"each {_CHARACTERS_A_VALUE} characters of a long text count as one",
                field="body",
            )
        looked_at += 1
        if looked_at % _LOOKED_AT_ONCE == 0:
            await slicer.breathe()


def _take_data(document: Json, loaded: LoadedVersion) -> list[Json]:
    """Move the inputs' values out of a body, leaving empty lists, so that the rest is small."""
    inputs = document.get("inputs") if isinstance(document, dict) else None
    taken = max(len(signature.inputs) for signature in loaded.signatures.values())
    if isinstance(inputs, list) and len(inputs) > 2 * taken + _WRONG_INPUTS:
        raise InvalidRequest(f"expected at most {taken}, got {len(inputs)}", field="inputs")
    data = []
    for one in inputs if isinstance(inputs, list) else []:
        has_data = isinstance(one, dict) and "data" in one
        data.append(one["data"] if has_data else None)
        if has_data:
            one["data"] = []
    return data


def _from_values(
    tensor: InferInput, spec: TensorSpec, values: Json, budget: RequestBudget
) -> Steps[WireTensor]:
    check_given(tensor)
    return (yield from from_values(tensor, spec, values, budget))


# ---- Answers ----


def needs_slices(answer: Answer, inference: JsonInference) -> bool:
    """Return whether writing an answer takes long enough to need the time slicer."""
    in_json, raw_size = [], 0
    for spec, is_binary in inference.outputs:
        tensor = answer.tensor(spec.name)
        if not is_binary:
            in_json.append(tensor)
        else:
            raw_size += held_bytes(tensor)
    return raw_size > _RAW_AT_ONCE_BYTES or json_output.needs_slices(in_json)


async def encode_answer(
    loaded: LoadedVersion, inference: JsonInference, answer: Answer, slicer: TimeSlicer
) -> HttpReply:
    """Serialize an answer in slices; see ``infer_bodies.encode_answer``."""
    printed = await _print_values(answer, inference, slicer)
    written = {
        spec.name: await _raw_texts(answer.tensor(spec.name), slicer)
        for spec, is_binary in inference.outputs
        if is_binary and spec.dtype == STRING
    }
    pieces, headers = infer_bodies.pieces_of(loaded, inference, answer, printed, written)
    written.clear()
    return HttpReply(await in_steps(joined(pieces), slicer), headers=headers)


async def _raw_texts(texts: Array, slicer: TimeSlicer) -> list[bytes | memoryview]:
    raw = list[bytes | memoryview]()
    for pieces in raw_texts(texts):
        raw += pieces
        await slicer.breathe()
    return raw


async def _print_values(
    answer: Answer, inference: JsonInference, slicer: TimeSlicer
) -> dict[str, msgspec.Raw]:
    """Serialize the outputs requested as JSON, in slices.

    Args:
        answer: The answer.
        inference: The request.
        slicer: The time slicer, held by the caller.

    Raises:
        InvalidRequest: Strings that are not UTF-8 were requested as JSON.
    """
    printed = {}
    for spec, is_binary in inference.outputs:
        if is_binary:
            continue
        printed[spec.name] = await print_tensor(spec, answer.tensor(spec.name), slicer)
    return printed


async def print_tensor(spec: TensorSpec, tensor: Array, slicer: TimeSlicer) -> msgspec.Raw:
    """Serialize a tensor as a flat JSON list, in slices.

    Args:
        spec: The output.
        tensor: Its values.
        slicer: The time slicer, held by the caller.

    Raises:
        InvalidRequest: The values are strings that are not UTF-8.
    """
    flat, parts = tensor.ravel(), []
    for cut in json_output.row_slices([flat]):
        values = infer_bodies.json_values(spec, flat[cut].tolist())
        parts.append(msgspec.json.encode(values)[1:-1])
        await slicer.breathe()
    return msgspec.Raw(await json_output.joined_by_commas(b"[", parts, b"]", slicer))
