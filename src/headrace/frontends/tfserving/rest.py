"""TensorFlow Serving over REST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.tfserving import bodies, descriptions, examples
from headrace.frontends.tfserving.rows import RowsDecoder
from headrace.frontends.tfserving.specs import ModelChoice, answered, find, find_signature, path_choice
from headrace.servable import DEFAULT_SIGNATURE, CheckedInputs, Signature

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.loaded import LoadedVersion

_Answering = Callable[["Service", ModelChoice, HttpCall], Awaitable[bytes]]

# Both at once are refused by name, not as an unknown path.
_VERSIONS = ("", "/versions/{version}", "/labels/{label}", "/versions/{version}/labels/{label}")


def http_routes(service: Service) -> list[HttpRoute]:
    """The routes of the API.

    Args:
        service: The door.
    """
    routes = []
    for version in _VERSIONS:
        model = f"/v1/models/{{model}}{version}"
        routes += [
            HttpRoute("POST", f"{model}:predict", _handler(service, _predict)),
            HttpRoute("POST", f"{model}:classify", _handler(service, _classify)),
            HttpRoute("POST", f"{model}:regress", _handler(service, _regress)),
            HttpRoute("GET", f"{model}/metadata", _handler(service, _metadata)),
            HttpRoute("GET", model, _handler(service, _status)),
        ]
    return routes


def _handler(service: Service, answer: _Answering) -> Callable[[HttpCall], Awaitable[HttpReply]]:
    async def handle(call: HttpCall) -> HttpReply:
        given = call.parameters
        chosen = path_choice(given["model"], given.get("version"), given.get("label"))
        return HttpReply(await answer(service, chosen, call))

    return handle


async def _predict(service: Service, chosen: ModelChoice, call: HttpCall) -> bytes:
    loaded = find(service, chosen)
    signature, inputs, by_row = predict_inputs(loaded, call.body, service.max_json_depth)
    answer = await service.predict(loaded, inputs, call.deadline)
    tensors = [(name, answer.tensor(name)) for name in signature.output_names]
    return bodies.print_predictions(tensors, by_row=by_row)


def predict_inputs(
    loaded: LoadedVersion, body: bytes, max_depth: int
) -> tuple[Signature, CheckedInputs, bool]:
    """Decode the body of a Predict request.

    Args:
        loaded: The version that it means.
        body: The body.
        max_depth: How deep it may nest.

    Returns:
        The signature, the inputs, and whether they came in rows.

    Raises:
        InvalidRequest: The body is wrong.
    """
    decoder = _rows_decoder(loaded)
    inputs = decoder.decode(body) if decoder else None
    if inputs is not None:
        return loaded.signatures[DEFAULT_SIGNATURE], inputs, True
    return general_predict_inputs(loaded, body, max_depth)


def _rows_decoder(loaded: LoadedVersion) -> RowsDecoder | None:
    cache = loaded.codec_cache
    if RowsDecoder not in cache:
        signature = find_signature(loaded, "")
        cache[RowsDecoder] = RowsDecoder(signature) if RowsDecoder.fits(signature) else None
    return cast("RowsDecoder | None", cache[RowsDecoder])


def general_predict_inputs(
    loaded: LoadedVersion, body: bytes, max_depth: int
) -> tuple[Signature, CheckedInputs, bool]:
    """Decode the body of a Predict request of any form; see ``predict_inputs``."""
    document = bodies.parse(body, max_depth)
    signature = find_signature(loaded, bodies.signature_name(document))
    columns, by_row = bodies.columns_of(document, signature)
    return signature, signature.check(columns), by_row


async def _classify(service: Service, chosen: ModelChoice, call: HttpCall) -> bytes:
    loaded = find(service, chosen)
    settings = loaded.config.signature
    document = bodies.parse(call.body, service.max_json_depth)
    signature = find_signature(loaded, bodies.signature_name(document))
    examples.check_kind(signature, "classify")
    examples.class_outputs(signature, settings)  # refuses before anything is computed
    inputs = examples.inputs_of(signature, bodies.examples_of(document))
    answer = await service.predict(loaded, inputs, call.deadline)
    scores, labels = examples.classes_of(answer, signature, settings)
    rows = bodies.json_values("", scores)
    names = labels or [[""] * len(row) for row in rows]
    return bodies.print_json(
        {"results": [list(zip(*pair, strict=True)) for pair in zip(names, rows, strict=True)]}
    )


async def _regress(service: Service, chosen: ModelChoice, call: HttpCall) -> bytes:
    loaded = find(service, chosen)
    settings = loaded.config.signature
    document = bodies.parse(call.body, service.max_json_depth)
    signature = find_signature(loaded, bodies.signature_name(document))
    examples.check_kind(signature, "regress")
    examples.value_output(signature, settings)
    inputs = examples.inputs_of(signature, bodies.examples_of(document))
    answer = await service.predict(loaded, inputs, call.deadline)
    return bodies.print_json(
        {"results": bodies.json_values("", examples.values_of(answer, signature, settings))}
    )


async def _metadata(service: Service, chosen: ModelChoice, call: HttpCall) -> bytes:
    loaded = find(service, chosen)
    signatures = {name: descriptions.signature_def(one) for name, one in loaded.signatures.items()}
    spec = {**answered(loaded), "version": loaded.version}
    document = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}
    return bodies.print_json(descriptions.as_json(document))


async def _status(service: Service, chosen: ModelChoice, call: HttpCall) -> bytes:
    statuses = descriptions.version_statuses(service, chosen)
    return bodies.print_json({"model_version_status": descriptions.as_json(statuses)})
