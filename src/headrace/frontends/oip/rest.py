"""The Open Inference Protocol over REST: all routes under ``/v2``."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from headrace.access.permissions import ADMIN, ANY, DESCRIBE, HEALTH, PREDICT
from headrace.base.errors import TooLarge
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute, NotReady
from headrace.frontends.oip import descriptions, generate, large_json
from headrace.frontends.oip.infer_bodies import (
    JSON_LENGTH_HEADER,
    JsonInference,
    encode_answer,
    json_bytes_of,
    parse,
)
from headrace.frontends.oip.json_misfits import wrong_body
from headrace.frontends.oip.parameters import version_number
from headrace.frontends.oip.repeated_bodies import RepeatedBodies
from headrace.frontends.service import refuse_unread
from headrace.frontends.wire.json_cost import parsed_at_once
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import in_steps
from headrace.lifecycle.leases import Lease

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

_AT_ONCE_SECONDS = 0.001  # decoding that takes longer continues in the time slicer

Body = TypeVar("Body", bound=msgspec.Struct)

Answering = Callable[["Service", HttpCall], object]
"""Maps a call to the value that is returned as JSON."""


class _IndexRequest(msgspec.Struct):
    ready: bool = False


class _LoadRequest(msgspec.Struct):
    parameters: dict[str, msgspec.Raw] | None = None


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of the protocol.

    Args:
        service: The Service.
    """
    routes = [
        HttpRoute(
            "GET", "/v2", _describing(service, lambda known, _: descriptions.server_metadata(known)), ANY
        ),
        HttpRoute("GET", "/v2/health/live", _health(service, service.live, "live"), HEALTH),
        HttpRoute("GET", "/v2/health/ready", _health(service, service.ready, "ready"), HEALTH),
        HttpRoute(
            "GET",
            "/v2/models/stats",
            _counting(service),
            DESCRIBE,
        ),
        HttpRoute("POST", "/v2/repository/index", _describing(service, _index), DESCRIBE),
        HttpRoute("POST", "/v2/repository/models/{model}/load", _describing(service, _load), ADMIN),
        HttpRoute("POST", "/v2/repository/models/{model}/unload", _describing(service, _unload), ADMIN),
    ]
    infer, ready = _inferring(service), _model_ready(service)
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            HttpRoute("POST", f"{model}/infer", infer, PREDICT),
            HttpRoute("GET", f"{model}/ready", ready, DESCRIBE),
            HttpRoute("GET", f"{model}/config", _describing(service, _config), DESCRIBE),
            HttpRoute("GET", f"{model}/stats", _counting(service), DESCRIBE),
            HttpRoute("GET", model, _describing(service, _metadata), DESCRIBE),
        ]
    return routes + generate.http_routes(service)


def _inferring(service: Service) -> HttpHandler:
    repeated = RepeatedBodies()
    recognise = repeated.recognise

    async def infer(call: HttpCall) -> HttpReply:
        loaded = service.loaded(call.parameters["model"], _version(call))
        if call.deadline != NO_DEADLINE:
            refuse_unread(loaded, call)
        json_bytes = json_bytes_of(call.body, call.header(JSON_LENGTH_HEADER))
        inference = recognise(loaded, call, json_bytes)
        if inference is None:
            with Lease(loaded):
                inference = await _parsed(service, loaded, call, json_bytes, repeated)
        answer = await service.predict(loaded, inference.inputs, inference.deadline, call)
        if large_json.needs_slices(answer, inference):
            async with service.slicer as slicer:
                return await large_json.encode_answer(loaded, inference, answer, slicer)
        return encode_answer(loaded, inference, answer)

    return infer


async def _parsed(
    service: Service, loaded: LoadedVersion, call: HttpCall, json_bytes: int, repeated: RepeatedBodies
) -> JsonInference:
    budget = RequestBudget.of(service.limits, call)
    if json_bytes > service.at_once_bytes:
        await service.slicer.step()
        text = call.body if json_bytes == len(call.body) else call.body[:json_bytes]
        if not parsed_at_once(text, service.at_once_bytes, service.limits):
            return await large_json.decode(service, loaded, call, json_bytes, budget)
    steps = parse(loaded, call, json_bytes, service.limits.max_json_depth, budget, repeated)
    until = perf_counter() + _AT_ONCE_SECONDS
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("JsonInference", end.value)
        if perf_counter() >= until:
            break
    async with service.slicer as slicer:
        return await in_steps(steps, slicer)


def _health(service: Service, healthy: Callable[[], bool], word: str) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        # Both words in both answers, as clients differ in which of them they read.
        body = msgspec.json.encode({"live": service.live(), "ready": service.ready()})
        if not healthy():
            raise NotReady(f"the server is not {word}", body)
        return HttpReply(body)

    return handle


def _model_ready(service: Service) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        name = call.parameters["model"]
        ready = service.model_ready(name, _version(call))
        body = msgspec.json.encode({"name": name, "ready": ready})
        if not ready:
            raise NotReady(f"{name} is not ready", body)
        return HttpReply(body)

    return handle


def _describing(service: Service, describe: Answering) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        return HttpReply(msgspec.json.encode(describe(service, call)))

    return handle


def _counting(service: Service) -> HttpHandler:
    async def handle(call: HttpCall) -> HttpReply:
        model = call.parameters.get("model", "")
        return HttpReply(msgspec.json.encode(await descriptions.statistics(service, model, _version(call))))

    return handle


def _version(call: HttpCall) -> int | None:
    return version_number(call.parameters.get("version", ""))


def _metadata(service: Service, call: HttpCall) -> object:
    return descriptions.model_metadata(service, service.loaded(call.parameters["model"], _version(call)))


def _config(service: Service, call: HttpCall) -> object:
    return descriptions.model_config(service.loaded(call.parameters["model"], _version(call)))


def _index(service: Service, call: HttpCall) -> object:
    return descriptions.repository_index(service, only_ready=_body(call, _IndexRequest).ready)


def _load(service: Service, call: HttpCall) -> object:
    descriptions.refuse_load_parameters(_body(call, _LoadRequest).parameters or ())
    service.reload(call.parameters["model"])
    return {"name": call.parameters["model"], "load": True}


def _unload(service: Service, call: HttpCall) -> object:
    service.unload(call.parameters["model"])
    return {"name": call.parameters["model"], "unload": True}


def _body(call: HttpCall, kind: type[Body]) -> Body:
    if not call.body:
        return kind()
    if len(call.body) > AT_ONCE_BYTES:
        raise TooLarge(
            f"expected at most {AT_ONCE_BYTES} bytes, got {len(call.body)}; leave it empty or send an object",
            field="body",
        )
    try:
        return msgspec.json.decode(call.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise wrong_body(call.body, error, "leave it empty or send an object") from error
