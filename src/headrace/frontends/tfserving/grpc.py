"""TensorFlow Serving over gRPC: PredictionService and ModelService."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.access.permissions import ADMIN, DESCRIBE, PREDICT
from headrace.base.errors import InvalidRequest, Unsupported, shown
from headrace.batching.request import Answer
from headrace.frontends.calls import GrpcCall, GrpcMethod, UnaryHandler
from headrace.frontends.metrics.tensorflow_names import model_name
from headrace.frontends.tfserving import classify_and_regress, descriptions
from headrace.frontends.tfserving.messages import AnswerWriter, PredictDecoder, Prediction, PredictRequest
from headrace.frontends.tfserving.model_specs import answered, choice, find
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import decode_and_ask, form_of
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensor_templates import Serialized
from headrace.frontends.wire.time_slicer import in_steps

if TYPE_CHECKING:
    from headrace.frontends.service import Service

_PREDICTION = "/tensorflow.serving.PredictionService/"
_MODELS = "/tensorflow.serving.ModelService/"
_SIGNATURES = "signature_def"
_MEASURED = frozenset({"Predict", "Classify", "Regress"})

_Message = protos.Message
_Answering = Callable[["Service", _Message], Awaitable[_Message]]


def grpc_methods(service: Service) -> list[GrpcMethod]:
    """Return the methods of both services.

    Args:
        service: The Service.
    """
    return [
        GrpcMethod(
            path,
            unary=_measured(service, path.rpartition("/")[2], handler_of),
            takes_views=handler_of is _predicting,
            verbs=verbs,
        )
        for path, (handler_of, verbs) in _METHODS.items()
    ]


def _measured(service: Service, api: str, handler_of: Callable[[Service], UnaryHandler]) -> UnaryHandler:
    """Return a handler, with TensorFlow Serving's own metrics if they are on and cover the method."""
    metrics = service.tensorflow_metrics
    if metrics is None or api not in _MEASURED:
        return handler_of(service)
    return metrics.measured(handler_of(metrics.watching(service, api)), model_name, api, "GRPC")


def _one_task(name: str, method: str, service: Service) -> UnaryHandler:
    return classify_and_regress.inferring(
        service,
        f"{name}Request",
        classify_and_regress.one_task(method),
        classify_and_regress.one_response(f"{name}Response"),
    )


def _several_tasks(service: Service) -> UnaryHandler:
    return classify_and_regress.inferring(
        service,
        "MultiInferenceRequest",
        classify_and_regress.tasks_of,
        classify_and_regress.response_of_tasks,
    )


def _predicting(service: Service) -> UnaryHandler:
    decoder = PredictDecoder(service)
    recognise, parse, predict = decoder.recognise, decoder.parse, service.predict
    form = form_of(PredictRequest)

    async def handle(message: Serialized, call: GrpcCall) -> bytes:
        found = recognise(message)
        if found is None:
            with RequestBudget.of(service.limits, call) as budget:
                return await handle_new(bytes(message), call, budget)
        loaded, inputs, writer, _ = found
        answer = await predict(loaded, inputs, call.deadline, call)
        return writer.write(answer) or await write_large(writer, answer, call)

    async def handle_new(message: bytes, call: GrpcCall, budget: RequestBudget) -> bytes:
        def ask(found: Prediction) -> Awaitable[Answer]:
            return predict(found.loaded, found.inputs, call.deadline, call)

        steps = parse(message, budget)
        found, answer = await decode_and_ask(message, form, steps, ask, budget, service.slicer)
        return found.writer.write(answer) or await write_large(found.writer, answer, call)

    async def write_large(writer: AnswerWriter, answer: Answer, call: GrpcCall) -> bytes:
        with RequestBudget.of(service.limits, call) as budget:
            async with service.slicer as slicer:
                return await in_steps(writer.writing(answer, budget), slicer)

    return handle


def _parsing(request_name: str, answer: _Answering, service: Service) -> UnaryHandler:
    request_class = protos.message(f"tensorflow.serving.{request_name}")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        response = await answer(service, protos.parse(request_class, message))
        written: bytes = response.SerializeToString()
        return written

    return handle


# ---- Models ----


async def _get_metadata(service: Service, request: _Message) -> _Message:
    unknown = [name for name in request.metadata_field if name != _SIGNATURES]
    if unknown or not request.metadata_field:
        got = shown(unknown[0]) if unknown else "none"
        raise InvalidRequest(f"expected {_SIGNATURES!r}, got {got}", field="metadata_field")
    loaded = find(service, choice(request))
    signatures = descriptions.SignatureDefMap(
        signature_def={name: descriptions.signature_def(one) for name, one in loaded.signatures.items()}
    )
    response = protos.message("tensorflow.serving.GetModelMetadataResponse")(model_spec=answered(loaded))
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


async def _get_status(service: Service, request: _Message) -> _Message:
    statuses = descriptions.version_statuses(service, choice(request))
    return protos.message("tensorflow.serving.GetModelStatusResponse")(model_version_status=statuses)


async def _reload_config(service: Service, request: _Message) -> _Message:
    """Refuse a configuration that would change anything; else reload its models."""
    config = request.config
    if config.WhichOneof("config") != "model_config_list":
        raise InvalidRequest("expected model_config_list", field="config")
    names = [one.name for one in config.model_config_list.config]
    if len(set(names)) != len(names):
        raise InvalidRequest("a model is named twice; name it once", field="config")
    if set(names) != set(service.models()):
        raise Unsupported(
            "config: models cannot be added or removed over the network, and it replaces the whole old one; "
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


_METHODS: dict[str, tuple[Callable[[Service], UnaryHandler], int]] = {
    f"{_PREDICTION}Predict": (_predicting, PREDICT),
    f"{_PREDICTION}Classify": (partial(_one_task, "Classification", classify_and_regress.CLASSIFY), PREDICT),
    f"{_PREDICTION}Regress": (partial(_one_task, "Regression", classify_and_regress.REGRESS), PREDICT),
    f"{_PREDICTION}MultiInference": (_several_tasks, PREDICT),
    f"{_PREDICTION}GetModelMetadata": (partial(_parsing, "GetModelMetadataRequest", _get_metadata), DESCRIBE),
    f"{_MODELS}GetModelStatus": (partial(_parsing, "GetModelStatusRequest", _get_status), DESCRIBE),
    f"{_MODELS}HandleReloadConfigRequest": (partial(_parsing, "ReloadConfigRequest", _reload_config), ADMIN),
}
