"""TensorFlow Serving over gRPC: PredictionService and ModelService."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.batching.request import Answer, Outcome, Request
from headrace.errors import InvalidRequest, Unsupported
from headrace.frontends import protos
from headrace.frontends.calls import GrpcCall, GrpcMethod, UnaryHandler
from headrace.frontends.tfserving import descriptions, examples
from headrace.frontends.tfserving.messages import PredictDecoder
from headrace.frontends.tfserving.specs import answered, choice, find, find_signature
from headrace.servable import CheckedInputs, Signature

if TYPE_CHECKING:
    from headrace.frontends.service import Service
    from headrace.loaded import LoadedVersion

_PREDICTION = "/tensorflow.serving.PredictionService/"
_MODELS = "/tensorflow.serving.ModelService/"
_SIGNATURES = "signature_def"

_Message = protos.Message
_Answering = Callable[["Service", _Message, GrpcCall], Awaitable[_Message]]

_ClassificationResult = protos.message("tensorflow.serving.ClassificationResult")
_RegressionResult = protos.message("tensorflow.serving.RegressionResult")


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """The methods of both services.

    Args:
        service: The door.
    """
    return [
        GrpcMethod(f"{_PREDICTION}Predict", unary=_predicting(service)),
        *(
            GrpcMethod(path, unary=_parsing(service, request, answer))
            for path, (request, answer) in _METHODS.items()
        ),
    ]


def _predicting(service: Service) -> UnaryHandler:
    decode = PredictDecoder(service).decode
    predict = service.predict

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        loaded, inputs, writer = decode(message)
        return writer.write(await predict(loaded, inputs, call.deadline))

    return handle


def _parsing(service: Service, request_name: str, answer: _Answering) -> UnaryHandler:
    request_class = protos.message(f"tensorflow.serving.{request_name}")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        response = await answer(service, protos.parse(request_class, message), call)
        written: bytes = response.SerializeToString()
        return written

    return handle


# ---- Classify, Regress, MultiInference ----


async def _classify(service: Service, request: _Message, call: GrpcCall) -> _Message:
    chosen = choice(request)
    loaded = find(service, chosen)
    signature = find_signature(loaded, chosen.signature)
    inputs = _classify_inputs(loaded, signature, request.input)
    answer = await service.predict(loaded, inputs, call.deadline)
    return protos.message("tensorflow.serving.ClassificationResponse")(
        result=_classification(answer, signature, loaded), model_spec=answered(loaded, signature.name)
    )


async def _regress(service: Service, request: _Message, call: GrpcCall) -> _Message:
    chosen = choice(request)
    loaded = find(service, chosen)
    signature = find_signature(loaded, chosen.signature)
    inputs = _regress_inputs(loaded, signature, request.input)
    answer = await service.predict(loaded, inputs, call.deadline)
    return protos.message("tensorflow.serving.RegressionResponse")(
        result=_regression(answer, signature, loaded), model_spec=answered(loaded, signature.name)
    )


def _classify_inputs(loaded: LoadedVersion, signature: Signature, given: _Message) -> CheckedInputs:
    examples.check_kind(signature, "classify")
    examples.class_outputs(signature, loaded.config.signature)  # refuses before anything is computed
    return examples.inputs_of(signature, examples.examples_of(given))


def _regress_inputs(loaded: LoadedVersion, signature: Signature, given: _Message) -> CheckedInputs:
    examples.check_kind(signature, "regress")
    examples.value_output(signature, loaded.config.signature)
    return examples.inputs_of(signature, examples.examples_of(given))


def _classification(answer: Answer, signature: Signature, loaded: LoadedVersion) -> _Message:
    scores, labels = examples.classes_of(answer, signature, loaded.config.signature)
    result = _ClassificationResult()
    for index, row in enumerate(scores.tolist()):
        classes = result.classifications.add().classes
        for position, score in enumerate(row):
            classes.add(label=labels[index][position] if labels else "", score=score)
    return result


def _regression(answer: Answer, signature: Signature, loaded: LoadedVersion) -> _Message:
    values = examples.values_of(answer, signature, loaded.config.signature)
    return _RegressionResult(regressions=[{"value": value} for value in values.tolist()])


_TASKS = {
    descriptions.METHODS["classify"]: (_classify_inputs, _classification, "classification_result"),
    descriptions.METHODS["regress"]: (_regress_inputs, _regression, "regression_result"),
}


async def _multi_inference(service: Service, request: _Message, call: GrpcCall) -> _Message:
    if not request.tasks:
        raise InvalidRequest("expected at least one task, got none", field="tasks")
    chosen = [choice(task) for task in request.tasks]
    if len({one[:3] for one in chosen}) > 1:
        raise InvalidRequest("all tasks must mean the same model and version", field="tasks")
    loaded = find(service, chosen[0])
    prepared: list[tuple[Signature, str, CheckedInputs]] = []
    for task, one in zip(request.tasks, chosen, strict=True):
        if task.method_name not in _TASKS:
            raise Unsupported(
                f"tasks: method {task.method_name!r:.60} is not supported; expected {' or '.join(_TASKS)}"
            )
        signature = find_signature(loaded, one.signature)
        if (signature, task.method_name) in [(known, method) for known, method, _ in prepared]:
            raise InvalidRequest(f"signature {signature.name!r} is asked for twice", field="tasks")
        prepared.append(
            (signature, task.method_name, _TASKS[task.method_name][0](loaded, signature, request.input))
        )
    # Handed over in one turn of the event loop: the version stays loaded until the last of them is answered.
    futures = [_submitted(service, loaded, inputs, call.deadline) for _, _, inputs in prepared]
    response = protos.message("tensorflow.serving.MultiInferenceResponse")()
    for (signature, method, _), outcome in zip(prepared, await asyncio.gather(*futures), strict=True):
        if not isinstance(outcome, Answer):
            raise outcome
        _, result_of, field = _TASKS[method]
        result = {field: result_of(outcome, signature, loaded)}
        response.results.add(model_spec=answered(loaded, signature.name), **result)
    return response


def _submitted(
    service: Service, loaded: LoadedVersion, inputs: CheckedInputs, deadline: float
) -> asyncio.Future[Outcome]:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    layout, columns, rows = inputs
    service.submit(
        loaded, Request(layout, columns, rows, future.set_result, deadline=deadline, waiter=future)
    )
    return future


# ---- About models ----


async def _get_metadata(service: Service, request: _Message, call: GrpcCall) -> _Message:
    unknown = [name for name in request.metadata_field if name != _SIGNATURES]
    if unknown or not request.metadata_field:
        got = f"{unknown[0]!r:.60}" if unknown else "none"
        raise InvalidRequest(f"expected {_SIGNATURES!r}, got {got}", field="metadata_field")
    loaded = find(service, choice(request))
    signatures = descriptions.SignatureDefMap(
        signature_def={name: descriptions.signature_def(one) for name, one in loaded.signatures.items()}
    )
    response = protos.message("tensorflow.serving.GetModelMetadataResponse")(model_spec=answered(loaded))
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


async def _get_status(service: Service, request: _Message, call: GrpcCall) -> _Message:
    statuses = descriptions.version_statuses(service, choice(request))
    return protos.message("tensorflow.serving.GetModelStatusResponse")(model_version_status=statuses)


async def _reload_config(service: Service, request: _Message, call: GrpcCall) -> _Message:
    """Look at the models anew; what a configuration would change beyond that is refused, never half done."""
    config = request.config
    if config.WhichOneof("config") != "model_config_list":
        raise InvalidRequest("expected model_config_list", field="config")
    names = [one.name for one in config.model_config_list.config]
    if len(set(names)) != len(names):
        raise InvalidRequest("a model is named twice; name it once", field="config")
    if set(names) != set(service.models()):
        raise Unsupported(
            "config: models cannot be added or removed over the network, and it replaces the old one whole; "
            f"name exactly {', '.join(map(repr, service.models())) or 'none'}, or change the server's own"
        )
    for one in config.model_config_list.config:
        set_fields = [
            field.name for field, _ in one.ListFields() if field.name not in ("name", "model_platform")
        ]
        if set_fields:
            raise Unsupported(
                f"config: {', '.join(set_fields)} of model {one.name!r} cannot be changed over the network; "
                "leave it out, and set it in the server's configuration or the model's headrace.toml"
            )
    for name in names:
        service.reload(name)
    return protos.message("tensorflow.serving.ReloadConfigResponse")(status={"error_code": "OK"})


_METHODS: dict[str, tuple[str, _Answering]] = {
    f"{_PREDICTION}Classify": ("ClassificationRequest", _classify),
    f"{_PREDICTION}Regress": ("RegressionRequest", _regress),
    f"{_PREDICTION}MultiInference": ("MultiInferenceRequest", _multi_inference),
    f"{_PREDICTION}GetModelMetadata": ("GetModelMetadataRequest", _get_metadata),
    f"{_MODELS}GetModelStatus": ("GetModelStatusRequest", _get_status),
    f"{_MODELS}HandleReloadConfigRequest": ("ReloadConfigRequest", _reload_config),
}
