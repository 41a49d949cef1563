"""TensorFlow Serving over REST."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.access.permissions import DESCRIBE, PREDICT
from headrace.base.errors import InvalidRequest, Unsupported
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.calls import HttpCall, HttpHandler, HttpReply, HttpRoute
from headrace.frontends.service import refuse_unread
from headrace.frontends.tfserving import descriptions, examples, json_bodies, large_json, results
from headrace.frontends.tfserving.json_misfits import BINARY
from headrace.frontends.tfserving.model_specs import ModelChoice, answered, find, find_signature, path_choice
from headrace.frontends.tfserving.row_decoder import RowsDecoder
from headrace.frontends.wire.json_cost import is_light, light_bytes, parsed_at_once
from headrace.frontends.wire.json_misfits import binary_instead
from headrace.frontends.wire.json_output import PRINTED_AT_ONCE, needs_slices
from headrace.frontends.wire.json_text import Json, parse_in_slices
from headrace.frontends.wire.long_lists import given_back
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import Steps, TimeSlicer, at_once, in_steps, run
from headrace.lifecycle.leases import Lease
from headrace.model.servable import EXPLAIN_SIGNATURE, NO_EXPLANATION, CheckedInputs, Signature, takes_packed

if TYPE_CHECKING:
    from headrace.config import Limits, SignatureConfig
    from headrace.frontends.service import Service
    from headrace.serving.loaded_version import LoadedVersion

_LIST_BEGINS = re.compile(rb"[ \t\r\n]*\[")
_PredictInputs = tuple[Signature, CheckedInputs, bool]
"""The signature, the inputs, and whether they came in rows."""
_Columns = tuple[Signature, dict[str, Array], bool]
"""Likewise, with inputs that are not checked."""
_Answering = Callable[["Service", ModelChoice, HttpCall], Awaitable[HttpReply]]

# The last path has both, so that it is refused with an explanation instead of as unknown.
_VERSIONS = ("", "/versions/{version}", "/labels/{label}", "/versions/{version}/labels/{label}")


def http_routes(service: Service) -> list[HttpRoute]:
    """Return the routes of the API.

    Args:
        service: The Service.
    """
    routes = []
    for version in _VERSIONS:
        model = f"/v1/models/{{model}}{version}"
        routes += [
            HttpRoute("POST", f"{model}:predict", _handler(service, _predict, "predict"), PREDICT),
            HttpRoute("POST", f"{model}:classify", _handler(service, _classify, "classify"), PREDICT),
            HttpRoute("POST", f"{model}:regress", _handler(service, _regress, "regress"), PREDICT),
            HttpRoute("POST", f"{model}:explain", _handler(service, _explain, "explain"), PREDICT),
            HttpRoute("GET", f"{model}/metadata", _handler(service, _metadata), DESCRIBE),
            HttpRoute("GET", model, _handler(service, _status), DESCRIBE),
        ]
    return routes


def _handler(service: Service, answer: _Answering, method: str = "") -> HttpHandler:
    metrics = service.tensorflow_metrics
    measured = service if metrics is None else metrics.watching(service, method.capitalize())

    def handle(call: HttpCall) -> Awaitable[HttpReply]:
        given = call.parameters
        return answer(measured, path_choice(given["model"], given.get("version"), given.get("label")), call)

    if metrics is None:
        return handle
    return metrics.measured(handle, lambda call: call.parameters["model"], method, "REST")


async def _predict(
    service: Service, chosen: ModelChoice, call: HttpCall, *, explained: bool = False
) -> HttpReply:
    if explained:
        loaded, decoded = await _explain_inputs(service, chosen, call)
    elif len(call.body) <= service.at_once_bytes:
        loaded = find(service, chosen)
        if call.deadline != NO_DEADLINE:
            refuse_unread(loaded, call)
        decoded = predict_inputs(loaded, call, service.limits)
    else:
        loaded, decoded = await _larger_inputs(service, chosen, call)
    signature, inputs, by_row = decoded
    if by_row and not loaded.config.batching.enabled and loaded.streams is None:
        raise InvalidRequest(
            'the model answers each request whole, not in rows (batching = false): send columns as "inputs"',
            field="instances",
        )
    answer = await service.predict(loaded, inputs, call.deadline, call)
    tensors = {name: answer.tensor(name) for name in signature.output_names}
    size = inputs.rows * signature.output_values
    if not 0 < size <= PRINTED_AT_ONCE and needs_slices(tensors.values()):
        async with service.slicer as slicer:
            return HttpReply(await large_json.print_predictions(tensors, by_row=by_row, slicer=slicer))
    return HttpReply(json_bodies.print_predictions(tensors, by_row=by_row))


def _explain(service: Service, chosen: ModelChoice, call: HttpCall) -> Awaitable[HttpReply]:
    return _predict(service, chosen, call, explained=True)


async def _explain_inputs(
    service: Service, chosen: ModelChoice, call: HttpCall
) -> tuple[LoadedVersion, _PredictInputs]:
    """Decode the body of Predict for the signature ``explain``."""
    if len(call.body) > service.at_once_bytes:
        await service.slicer.step()
    loaded = find(service, chosen)
    if EXPLAIN_SIGNATURE not in loaded.signatures:
        raise Unsupported(NO_EXPLANATION)
    if call.deadline != NO_DEADLINE:
        refuse_unread(loaded, call)
    budget = RequestBudget.of(service.limits, call)
    if parsed_at_once(call.body, service.at_once_bytes, service.limits):
        document = json_bodies.parse(call.body, service.limits.max_json_depth)
        signature = _explain_signature(loaded, document)
        columns, by_row = json_bodies.columns_of(document, signature, budget)
    else:
        with Lease(loaded):
            async with service.slicer as slicer:
                signature, columns, by_row = await _columns_in_slices(
                    service, loaded, call, budget, slicer, _explain_signature
                )
    return loaded, (signature, signature.check(columns, budget=budget), by_row)


def _explain_signature(loaded: LoadedVersion, document: dict[str, Json]) -> Signature:
    if json_bodies.signature_name(document) not in ("", EXPLAIN_SIGNATURE):
        raise InvalidRequest(f"expected {EXPLAIN_SIGNATURE!r} or none", field="signature_name")
    return loaded.signatures[EXPLAIN_SIGNATURE]


def _named_signature(loaded: LoadedVersion, document: dict[str, Json]) -> Signature:
    return find_signature(loaded, json_bodies.signature_name(document))


async def _larger_inputs(
    service: Service, chosen: ModelChoice, call: HttpCall
) -> tuple[LoadedVersion, _PredictInputs]:
    """Find the version and decode the inputs of a body that may take long."""
    await service.slicer.step()
    loaded = find(service, chosen)
    if call.deadline != NO_DEADLINE:
        refuse_unread(loaded, call)
    at_once = _inputs_at_once(service, loaded, call)
    if at_once is not None:
        return loaded, at_once
    budget = RequestBudget.of(service.limits, call)
    with Lease(loaded):
        signature, columns, by_row = await _large_columns(service, loaded, call, budget)
    return loaded, (signature, signature.check(columns, budget=budget), by_row)


def _inputs_at_once(service: Service, loaded: LoadedVersion, call: HttpCall) -> _PredictInputs | None:
    """Decode the inputs in one step; return None for a body that must be decoded in slices."""
    body, limits = call.body, service.limits
    if len(body) > light_bytes(service.at_once_bytes, limits):
        return None
    decoder = _rows_decoder(loaded)
    inputs = decoder.decode(body) if decoder else None
    if decoder is not None and inputs is not None:
        return decoder.signature, inputs, True
    return general_predict_inputs(loaded, call, limits) if is_light(body) else None


async def _large_columns(
    service: Service, loaded: LoadedVersion, call: HttpCall, budget: RequestBudget
) -> _Columns:
    decoder = _rows_decoder(loaded)
    async with service.slicer as slicer:
        if decoder is not None:
            tried = RequestBudget.of(service.limits, call)  # separate, as an unusual body is decoded again
            rows = await decoder.decode_in_slices(call.body, tried, slicer)
            if rows is not None:
                return decoder.signature, rows, True
        return await _columns_in_slices(service, loaded, call, budget, slicer, _named_signature)


async def _columns_in_slices(
    service: Service,
    loaded: LoadedVersion,
    call: HttpCall,
    budget: RequestBudget,
    slicer: TimeSlicer,
    choose: Callable[[LoadedVersion, dict[str, Json]], Signature],
) -> _Columns:
    document = await _large_document(service, call, budget, slicer)
    try:
        signature = choose(loaded, document)
        columns, by_row = await large_json.columns_of(document, signature, budget, slicer)
    finally:
        await given_back(document, slicer)
    return signature, columns, by_row


async def _large_document(
    service: Service, call: HttpCall, budget: RequestBudget, slicer: TimeSlicer
) -> dict[str, Json]:
    if _LIST_BEGINS.match(call.body):
        json_bodies.document([])  # raises the error for a list before it is parsed
    if (binary := binary_instead(call.body, BINARY)) is not None:
        raise binary
    found = await parse_in_slices(call.body, service.limits.max_json_depth, budget, slicer)
    return json_bodies.document(found)


def predict_inputs(loaded: LoadedVersion, call: HttpCall, limits: Limits) -> _PredictInputs:
    """Decode the body of a Predict request.

    Args:
        loaded: The version that it asks for.
        call: The call.
        limits: Limits on its cost.

    Returns:
        The signature, the inputs, and whether they came in rows.

    Raises:
        InvalidRequest: The body is invalid.
    """
    decoder = _rows_decoder(loaded)
    if decoder is not None:
        inputs = decoder.decode(call.body)
        if inputs is not None:
            return decoder.signature, inputs, True
    return general_predict_inputs(loaded, call, limits)


def _rows_decoder(loaded: LoadedVersion) -> RowsDecoder | None:
    cache = loaded.codec_cache
    try:
        return cache[RowsDecoder]  # type: ignore[return-value]  # the type stored under this key
    except KeyError:
        signature, packs = find_signature(loaded, ""), takes_packed(loaded.servable)
        decoder = RowsDecoder(signature) if RowsDecoder.fits(signature, packs=packs) else None
        cache[RowsDecoder] = decoder
        return decoder


def general_predict_inputs(loaded: LoadedVersion, call: HttpCall, limits: Limits) -> _PredictInputs:
    """Decode the body of a Predict request of any form; see ``predict_inputs``."""
    document = json_bodies.parse(call.body, limits.max_json_depth)
    signature = find_signature(loaded, json_bodies.signature_name(document))
    budget = RequestBudget.of(limits, call)
    columns, by_row = json_bodies.columns_of(document, signature, budget)
    return signature, signature.check(columns, budget=budget), by_row


async def _classify(service: Service, chosen: ModelChoice, call: HttpCall) -> HttpReply:
    loaded, signature, inputs = await _example_inputs(service, chosen, call, examples.check_classify)
    answer = await service.predict(loaded, inputs, call.deadline, call)
    return await _printed(service, examples.classes_of(answer, signature, loaded.config.signature))


async def _regress(service: Service, chosen: ModelChoice, call: HttpCall) -> HttpReply:
    loaded, signature, inputs = await _example_inputs(service, chosen, call, examples.check_regress)
    answer = await service.predict(loaded, inputs, call.deadline, call)
    return await _printed(service, examples.values_of(answer, signature, loaded.config.signature))


async def _printed(service: Service, result: results.Result) -> HttpReply:
    if results.needs_slices(result):
        async with service.slicer as slicer:
            return HttpReply(await in_steps(results.print_result(result), slicer))
    return HttpReply(run(results.print_result(result)))


async def _example_inputs(
    service: Service,
    chosen: ModelChoice,
    call: HttpCall,
    check: Callable[[Signature, SignatureConfig], None],
) -> tuple[LoadedVersion, Signature, CheckedInputs]:
    if len(call.body) > service.at_once_bytes:
        await service.slicer.step()
    loaded = find(service, chosen)
    budget = RequestBudget.of(service.limits, call)
    if parsed_at_once(call.body, service.at_once_bytes, service.limits):
        document = json_bodies.parse(call.body, service.limits.max_json_depth)
        signature = find_signature(loaded, json_bodies.signature_name(document))
        check(signature, loaded.config.signature)
        given, shared = json_bodies.examples_of(document, signature, budget)
        steps = _columns_of(signature, given, shared, budget)
        columns = at_once(steps)
        if columns is None:
            with Lease(loaded):
                async with service.slicer as slicer:
                    columns = await in_steps(steps, slicer)
    else:
        with Lease(loaded):
            async with service.slicer as slicer:
                document = await _large_document(service, call, budget, slicer)
                try:
                    signature = find_signature(loaded, json_bodies.signature_name(document))
                    check(signature, loaded.config.signature)
                    given, shared = await large_json.examples_of(document, signature, budget, slicer)
                    columns = await in_steps(_columns_of(signature, given, shared, budget), slicer)
                finally:
                    await given_back(document, slicer)
    return loaded, signature, signature.check(columns, budget=budget)


def _columns_of(
    signature: Signature, given: list[examples.Features], shared: examples.Features, budget: RequestBudget
) -> Steps[dict[str, Array]]:
    make = examples.of_features if signature.examples else examples.columns_of
    return make(signature, given, shared, budget)


async def _metadata(service: Service, chosen: ModelChoice, call: HttpCall) -> HttpReply:
    loaded = find(service, chosen)
    signatures = {name: descriptions.signature_def(one) for name, one in loaded.signatures.items()}
    spec = {**answered(loaded), "version": loaded.version}
    document = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}
    return HttpReply(json_bodies.print_json(descriptions.as_json(document)))


async def _status(service: Service, chosen: ModelChoice, call: HttpCall) -> HttpReply:
    statuses = descriptions.version_statuses(service, chosen)
    return HttpReply(json_bodies.print_json({"model_version_status": descriptions.as_json(statuses)}))
