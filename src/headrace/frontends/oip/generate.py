"""Triton's generate extension over REST: an object of plain values in, a JSON object or a stream of them out.

A request has one row, whose values have the names of inputs; ``parameters`` may hold some of them. An answer
has the values of its outputs, one value by itself and several as a flat list.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.access.permissions import PREDICT
from headrace.base.errors import InvalidRequest, TooLarge
from headrace.batching.part_streams import answers_in_parts
from headrace.batching.request import Answer
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute, HttpStreamHandler
from headrace.frontends.oip.infer_bodies import json_values
from headrace.frontends.oip.large_json import print_tensor
from headrace.frontends.oip.parameters import (
    SIGNATURE_PARAMETER,
    deadline_after,
    refuse_parameters,
    version_number,
)
from headrace.frontends.wire.json_cost import parsed_at_once
from headrace.frontends.wire.json_output import needs_slices
from headrace.frontends.wire.json_text import Json, parse_at_once, parse_in_slices
from headrace.frontends.wire.request_budget import RequestBudget, check_name
from headrace.lifecycle.leases import Lease
from headrace.model.misfits import said
from headrace.model.servable import CheckedInputs, Signature, TensorSpec, signature_named

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

MOST_VALUES = 16_384
"""Largest number of values in a request: they are converted in one step of about a millisecond."""

_encode = msgspec.json.Encoder().encode


class _Asked(NamedTuple):
    """A decoded request."""

    loaded: LoadedVersion
    signature: Signature
    inputs: CheckedInputs
    request_id: str
    deadline: float


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of the extension.

    Args:
        service: The Service.
    """
    routes = []
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            HttpRoute("POST", f"{model}/generate", _generating(service), PREDICT),
            HttpRoute("POST", f"{model}/generate_stream", None, PREDICT, stream=_streaming(service)),
        ]
    return routes


def _generating(service: Service) -> HttpHandler:
    async def generate(call: HttpCall) -> HttpReply:
        asked = await _decoded(service, call)
        if asked.loaded.streams is not None:
            raise answers_in_parts(asked.loaded.name)
        answer = await service.predict(asked.loaded, asked.inputs, asked.deadline, call)
        return HttpReply(await _printed(service, asked, answer))

    return generate


def _streaming(service: Service) -> HttpStreamHandler:
    async def stream(call: HttpCall) -> AsyncGenerator[bytes, None]:
        asked = await _decoded(service, call)
        with closing(service.parts(asked.loaded, asked.inputs, asked.deadline, call)) as parts:
            async for answer in parts:
                yield await _printed(service, asked, answer)

    return stream


# ---- Requests ----


async def _decoded(service: Service, call: HttpCall) -> _Asked:
    """Decode a request; use it in the same turn of the event loop, as nothing else keeps its version."""
    loaded = service.loaded(call.parameters["model"], version_number(call.parameters.get("version", "")))
    budget, text, depth = RequestBudget.of(service.limits, call), call.body, service.limits.max_json_depth
    if parsed_at_once(text, service.at_once_bytes, service.limits):
        document = parse_at_once(text, depth)
    else:
        with Lease(loaded):
            async with service.slicer as slicer:
                document = await parse_in_slices(text, depth, budget, slicer)
    return _asked(loaded, document, call.deadline, budget)


def _asked(loaded: LoadedVersion, document: Json, deadline: float, budget: RequestBudget) -> _Asked:
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"expected an object with the model's inputs by name, got {said(document)}", field="body"
        )
    _check_size(document)
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"expected an object, got {said(parameters)}; send the parameters by name", field="parameters"
        )
    refuse_parameters({name: msgspec.Raw(_encode(one)) for name, one in parameters.items()}, "parameters")
    signature = signature_named(loaded.signatures, _text(parameters, SIGNATURE_PARAMETER))
    known = set(signature.input_names)
    values = {name: one for name, one in parameters.items() if name in known}
    values |= {name: one for name, one in document.items() if name in known or name not in _OWN}
    signature.check_names(values)
    inputs = signature.check({name: [one] for name, one in values.items()}, budget=budget)
    if "timeout" in parameters and "timeout" not in known:
        deadline = min(deadline, deadline_after(_whole(parameters["timeout"])))
    return _Asked(loaded, signature, inputs, "" if "id" in known else _text(document, "id"), deadline)


_OWN = ("id", "parameters")
"""Members of a request that are not inputs, unless the model has inputs of these names."""


def _text(given: dict[str, Json], name: str) -> str:
    text = given.get(name, "")
    if not isinstance(text, str):
        raise InvalidRequest(f"expected text, got {said(text)}", field=name)
    check_name(len(text), name)
    return text


def _whole(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"expected a whole number of microseconds, got {said(value)}", field="timeout")
    return value


def _check_size(document: dict[str, Json]) -> None:
    """Check the number of values, before any is converted."""
    found = 0
    left: list[Json] = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            found += len(one)
            if found > MOST_VALUES:
                raise TooLarge(
                    f"expected at most {MOST_VALUES} values, got more; send them to …/infer or over gRPC",
                    field="body",
                )
            left += one.values() if isinstance(one, dict) else one


# ---- Answers ----


async def _printed(service: Service, asked: _Asked, answer: Answer) -> bytes:
    """Serialize an answer, or a part of one."""
    loaded, specs = asked.loaded, asked.signature.outputs
    said: dict[str, Any] = {"model_name": loaded.name, "model_version": str(loaded.version)}
    if asked.request_id:
        said["id"] = asked.request_id
    if not needs_slices(answer.tensor(spec.name) for spec in specs):
        return _encode(said | {spec.name: _value(spec, answer) for spec in specs})
    async with service.slicer as slicer:
        for spec in specs:
            said[spec.name] = await print_tensor(spec, answer.tensor(spec.name), slicer)
        return _encode(said)


def _value(spec: TensorSpec, answer: Answer) -> Json:
    tensor = answer.tensor(spec.name)
    values = json_values(spec, tensor.ravel().tolist())
    return values[0] if len(values) == 1 and None not in spec.shape else values
