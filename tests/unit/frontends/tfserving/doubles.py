"""The door for these codecs' tests: the other protocol's, with labels, and with answers by callback."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import NotFound
from headrace.base.tensors import Tensors
from headrace.batching.concatenation import join
from headrace.batching.request import Answer, BatchOutputs, Request, Timings
from headrace.config import SignatureConfig
from headrace.frontends.calls import GrpcCall, HttpCall
from headrace.frontends.tfserving.grpc import grpc_methods
from headrace.frontends.tfserving.rest import http_routes
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import protos
from headrace.model.servable import Signature
from tests.unit.frontends.oip import doubles
from tests.unit.frontends.oip.doubles import LoadedDouble, Model, run, spec


class ServiceDouble(doubles.ServiceDouble):
    """The door to some versions of models, with the label ``stable`` on version 3 of each."""

    def loaded(self, model: str, version: int | None = None, label: str | None = None) -> Any:
        if label is not None and label != "stable":
            raise NotFound(f"model {model!r} has no label {label!r}")
        return super().loaded(model, 3 if label else version)

    def labels(self, model: str) -> dict[str, int]:
        return {"stable": 3}

    def submit(self, loaded: LoadedDouble, request: Request) -> None:
        tensors = join(request.layout, [request.columns], request.rows, request.rows)
        outputs = BatchOutputs(loaded.model(tensors))
        request.settle(Answer(outputs, 0, request.rows, Timings(0.0, request.rows, 1)))


def call(service: Any, method: str, message: Any, *, models: bool = False) -> Any:
    """Call a gRPC method with a message, and give the response."""
    path = f"/tensorflow.serving.{'ModelService' if models else 'PredictionService'}/{method}"
    (found,) = [one for one in grpc_methods(service) if one.path == path]
    assert found.unary is not None
    names = {
        "Predict": "Predict", "Classify": "Classification", "Regress": "Regression",
        "HandleReloadConfigRequest": "ReloadConfig",
    }  # fmt: skip
    response = protos.message(f"tensorflow.serving.{names.get(method, method)}Response")
    return response.FromString(run(found.unary(message.SerializeToString(), GrpcCall())))


def http(service: Any, method: str, path: str, body: bytes | str | object = b"") -> Any:
    """Ask for a path, and give the answer's JSON."""
    return msgspec.json.decode(http_bytes(service, method, path, body))


def http_bytes(service: Any, method: str, path: str, body: bytes | str | object = b"") -> bytes:
    """Ask for a path, and give the answer's bytes."""
    found = Router(http_routes(service)).match(method, path)
    assert found.handler is not None, path
    if not isinstance(body, bytes):
        body = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    reply = run(found.handler(HttpCall(method, path, found.parameters, body=body)))
    assert isinstance(reply.body, bytes)
    return reply.body


def message(name: str, **fields: Any) -> Any:
    return protos.message(f"tensorflow.serving.{name}")(**fields)


def classifier(settings: SignatureConfig | None = None, *, kind: Any = "predict") -> LoadedDouble:
    """Three scores, their names, and a value for a person's age and city."""

    def model(inputs: Tensors) -> Tensors:
        age = inputs["age"]
        names = np.empty((len(age), 3), object)
        names[:] = [[b"a", b"b", b"c"]] * len(age)
        scores = np.stack([age, age * 0.1, age * 0], axis=1).astype(np.float32)
        return {"scores": scores, "classes": names, "value": age[:, None] * np.float32(2)}

    signature = Signature(
        "serving_default",
        (spec("age", "FP32"), spec("city", "BYTES", 1)),
        (spec("scores", "FP32", 3), spec("classes", "BYTES", 3), spec("value", "FP32", 1)),
        kind=kind,
    )
    return configured(LoadedDouble(signature, model, name="people"), settings)


def configured(loaded: LoadedDouble, settings: SignatureConfig | None) -> LoadedDouble:
    if settings is not None:
        loaded.config = msgspec.structs.replace(loaded.config, signature=settings)
    return loaded


def rows_model(*inputs: Any, outputs: Any = None, model: Model | None = None) -> LoadedDouble:
    """A model of some inputs that answers them, under the names of its outputs."""
    given = outputs or inputs
    names = [(one.name, other.name) for one, other in zip(given, inputs, strict=False)]
    signature = Signature("serving_default", tuple(inputs), tuple(given))
    return LoadedDouble(
        signature, model or (lambda tensors: {out: tensors[source] for out, source in names}), name="m"
    )
