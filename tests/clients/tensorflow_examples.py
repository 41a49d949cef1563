"""Classifies Examples with TensorFlow Serving's own gRPC stubs and prints what was answered, as JSON.

Run by tests in the clients' environment. Usage: tensorflow_examples.py HOST:PORT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc

# The first import supplies a module that the others need.
from tensorflow_serving_stubs import SECONDS, Answers, predict_request, refusal, spec, strings  # isort: skip
from tensorflow.core.example import example_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

REGRESSION = "regression"


def example(age: float | None = None, city: bytes | None = None) -> Any:
    made = example_pb2.Example()
    if age is not None:
        made.features.feature["age"].float_list.value.append(age)
    if city is not None:
        made.features.feature["city"].bytes_list.value.append(city)
    return made


def listed(request: Any, *examples: Any) -> Any:
    request.input.example_list.examples.extend(examples)
    return request


def in_context(request: Any, context: Any, *examples: Any) -> Any:
    request.input.example_list_with_context.context.CopyFrom(context)
    request.input.example_list_with_context.examples.extend(examples)
    return request


def classification(result: Any) -> Any:
    return [[[one.label, one.score] for one in row.classes] for row in result.classifications]


def answers(stub: Any) -> Answers:
    classify = classification_pb2.ClassificationRequest
    regress = regression_pb2.RegressionRequest
    people = [example(1.5, b"Ulm"), example(2.0)]
    regression = spec("estimator", signature=REGRESSION)
    multi = listed(inference_pb2.MultiInferenceRequest(), *people)
    multi.tasks.add(model_spec=spec("estimator"), method_name="tensorflow/serving/classify")
    multi.tasks.add(model_spec=regression, method_name="tensorflow/serving/regress")
    together = stub.MultiInference(multi, timeout=SECONDS).results
    shared = in_context(
        classify(model_spec=spec("estimator")), example(9.0, b"Ulm"), example(1.5), example(city=b"Rom")
    )
    in_tensor = strings([one.SerializeToString() for one in people])
    predicted = stub.Predict(
        predict_request(spec("estimator", signature="predict"), examples=in_tensor), timeout=SECONDS
    )

    def values(request: Any) -> list[float]:
        return [
            row.value for row in stub.Regress(listed(request, *people), timeout=SECONDS).result.regressions
        ]

    return {
        "classes": classification(
            stub.Classify(listed(classify(model_spec=spec("estimator")), *people), timeout=SECONDS).result
        ),
        "in context": classification(stub.Classify(shared, timeout=SECONDS).result),
        "values": values(regress(model_spec=regression)),
        "values of TensorFlow 2": values(regress(model_spec=spec("reader"))),
        "together": [
            classification(together[0].classification_result),
            [row.value for row in together[1].regression_result.regressions],
        ],
        "predicted": list(predicted.outputs["scores"].float_val),
        "an age is missing": refusal(stub.Regress, listed(regress(model_spec=regression), example())),
        "methods": methods(stub),
    }


def methods(stub: Any) -> dict[str, str]:
    asked = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=spec("estimator"), metadata_field=["signature_def"]
    )
    found = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(asked, timeout=SECONDS).metadata["signature_def"].Unpack(found)
    return {name: one.method_name for name, one in found.signature_def.items()}


if __name__ == "__main__":
    with grpc.insecure_channel(sys.argv[1]) as channel:
        print(json.dumps(answers(prediction_service_pb2_grpc.PredictionServiceStub(channel))))
