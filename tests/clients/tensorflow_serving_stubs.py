"""Drives a server with TensorFlow Serving's own gRPC stubs and prints what it answered, as JSON.

Run by tests in the clients' environment. Usage: tensorflow_serving_stubs.py HOST:PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool


def provide_error_codes() -> None:
    """Supply the one module that tensorflow-protobuf leaves out: an enum of status codes."""
    name = "tensorflow.tsl.protobuf.error_codes_pb2"
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/tsl/protobuf/error_codes.proto", package="tensorflow.error", syntax="proto3"
    )
    enum = file.enum_type.add(name="Code")
    for code in grpc.StatusCode:
        enum.value.add(name=code.name, number=code.value[0])
    descriptor_pool.Default().Add(file)
    shim = ModuleType(name)
    # TensorFlow Serving's generated code looks for the enum's later home.
    shim.xla_dot_tsl_dot_protobuf_dot_error__codes__pb2 = shim  # type: ignore[attr-defined]
    sys.modules |= {"tensorflow.tsl": ModuleType("tsl"), "tensorflow.tsl.protobuf": ModuleType("protobuf")}
    sys.modules[name] = shim
    sys.modules["tensorflow.tsl.protobuf"].error_codes_pb2 = shim  # type: ignore[attr-defined]


provide_error_codes()

from tensorflow.core.framework import tensor_pb2, types_pb2  # noqa: E402 - after the shim
from tensorflow_serving.apis import (  # noqa: E402 - as above
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

Answers = dict[str, Any]
SECONDS = 20.0


def spec(name: str, *, version: int | None = None, label: str = "", signature: str = "") -> Any:
    made = model_pb2.ModelSpec(name=name, signature_name=signature)
    if version is not None:
        made.version.value = version
    if label:
        made.version_label = label
    return made


def floats(values: list[float], shape: list[int] | None = None) -> Any:
    """A tensor with its values in the typed field."""
    made = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=values)
    for size in [len(values)] if shape is None else shape:
        made.tensor_shape.dim.add(size=size)
    return made


def raw(array: np.ndarray, dtype: int) -> Any:
    """A tensor with its values as bytes, as tf.make_tensor_proto writes it."""
    made = tensor_pb2.TensorProto(dtype=dtype, tensor_content=array.tobytes())
    for size in array.shape:
        made.tensor_shape.dim.add(size=size)
    return made


def strings(values: list[bytes]) -> Any:
    made = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=values)
    made.tensor_shape.dim.add(size=len(values))
    return made


def predict_request(model: Any, outputs: tuple[str, ...] = (), **inputs: Any) -> Any:
    made = predict_pb2.PredictRequest(model_spec=model, output_filter=outputs)
    for name, tensor in inputs.items():
        made.inputs[name].CopyFrom(tensor)
    return made


def numbers(tensor: Any) -> list[float]:
    content = np.frombuffer(tensor.tensor_content, np.float32).tolist()
    return content or list(tensor.float_val)


def refusal(call: Callable[..., Any], request: Any, timeout: float = SECONDS) -> list[str]:
    try:
        call(request, timeout=timeout)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return []


def predict(stub: Any) -> Answers:
    x = floats([1, 2, 5])
    ask = stub.Predict
    default = ask(predict_request(spec("half_plus_two"), x=x), timeout=SECONDS)
    ab = {
        "a": raw(np.array([[1, 2, 3], [4, 5, 6]], np.float32), types_pb2.DT_FLOAT),
        "b": raw(np.array([10, 20]), types_pb2.DT_INT64),
    }
    both = ask(predict_request(spec("pair"), **ab), timeout=SECONDS)
    one = ask(predict_request(spec("pair"), ("largest",), **ab), timeout=SECONDS)
    echo = ask(predict_request(spec("words"), text=strings([b"a", "ö".encode()])), timeout=SECONDS)
    by_version = ask(predict_request(spec("half_plus_two", version=1), x=x), timeout=SECONDS)
    by_label = ask(predict_request(spec("half_plus_two", label="stable"), x=x), timeout=SECONDS)
    canary = ask(predict_request(spec("half_plus_two", label="canary"), x=x), timeout=SECONDS)
    return {
        "y": numbers(default.outputs["y"]),
        "answered by": [default.model_spec.name, default.model_spec.version.value],
        "both": {name: numbers(tensor) for name, tensor in both.outputs.items()},
        "filtered": {name: numbers(tensor) for name, tensor in one.outputs.items()},
        "echo": [word.hex() for word in echo.outputs["echo"].string_val],
        "by version": [numbers(by_version.outputs["y"]), by_version.model_spec.version.value],
        "by label": [numbers(by_label.outputs["y"]), by_label.model_spec.version.value],
        "canary": numbers(canary.outputs["y"]),
    }


def refusals(stub: Any) -> Answers:
    x = floats([1])
    wide = floats([1, 2, 3, 4, 5, 6], [2, 3])
    lying, negative = floats([1, 2, 3], [2]), floats([1], [-1])
    integers = raw(np.array([1]), types_pb2.DT_INT64)
    here = spec("half_plus_two")
    requests = {
        "no such model": predict_request(spec("missing"), x=x),
        "no such version": predict_request(spec("half_plus_two", version=9), x=x),
        "no such label": predict_request(spec("half_plus_two", label="nightly"), x=x),
        "no such signature": predict_request(spec("half_plus_two", signature="other"), x=x),
        "no such input": predict_request(here, z=x),
        "missing input": predict_request(spec("pair"), a=floats([1, 2, 3], [1, 3])),
        "wrong shape": predict_request(here, x=wide),
        "more values than the shape": predict_request(here, x=lying),
        "negative dimension": predict_request(here, x=negative),
        "wrong dtype": predict_request(here, x=integers),
        "no such output": predict_request(here, ("z",), x=x),
        "output twice": predict_request(here, ("y", "y"), x=x),
    }
    answers = {name: refusal(stub.Predict, request) for name, request in requests.items()}
    slow = predict_request(spec("slow"), seconds=floats([0.5]))
    answers["out of time"] = refusal(stub.Predict, slow, timeout=0.1)
    classify = classification_pb2.ClassificationRequest(model_spec=spec("price"))
    classify.input.example_list.examples.add().features.feature["x"].float_list.value.append(1)
    answers["regressor asked to classify"] = refusal(stub.Classify, classify)
    return answers


def examples(request: Any, name: str, rows: list[list[float]]) -> Any:
    for row in rows:
        example = request.input.example_list.examples.add()
        example.features.feature[name].float_list.value.extend(row)
    return request


def classify_and_regress(stub: Any) -> Answers:
    flowers = classification_pb2.ClassificationRequest(model_spec=spec("flowers"))
    classified = stub.Classify(examples(flowers, "x", [[1, 2], [3, 4]]), timeout=SECONDS)
    price = regression_pb2.RegressionRequest(model_spec=spec("price"))
    regressed = stub.Regress(examples(price, "x", [[1], [2]]), timeout=SECONDS)
    multi = inference_pb2.MultiInferenceRequest()
    multi.tasks.add(model_spec=spec("price"), method_name="tensorflow/serving/regress")
    examples(multi, "x", [[3], [4]])
    together = stub.MultiInference(multi, timeout=SECONDS)
    return {
        "classes": [
            [[one.label, one.score] for one in row.classes] for row in classified.result.classifications
        ],
        "values": [row.value for row in regressed.result.regressions],
        "multi": [row.value for row in together.results[0].regression_result.regressions],
    }


def status_and_metadata(stub: Any, channel: grpc.Channel) -> Answers:
    asking = model_service_pb2_grpc.ModelServiceStub(channel)

    def status(model: Any) -> Any:
        return get_model_status_pb2.GetModelStatusRequest(model_spec=model)

    all_of_it = asking.GetModelStatus(status(spec("half_plus_two")), timeout=SECONDS)
    one = asking.GetModelStatus(status(spec("half_plus_two", label="stable")), timeout=SECONDS)
    states = get_model_status_pb2.ModelVersionStatus.State
    metadata = stub.GetModelMetadata(
        get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=spec("pair"), metadata_field=["signature_def"]
        ),
        timeout=SECONDS,
    )
    signatures = get_model_metadata_pb2.SignatureDefMap()
    metadata.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    return {
        "status": [
            [row.version, states.Name(row.state), row.status.error_code]
            for row in all_of_it.model_version_status
        ],
        "status by label": [row.version for row in one.model_version_status],
        "no such status": refusal(asking.GetModelStatus, status(spec("missing"))),
        "signature": {
            name: [types_pb2.DataType.Name(info.dtype), [dim.size for dim in info.tensor_shape.dim]]
            for name, info in [*signature.inputs.items(), *signature.outputs.items()]
        },
    }


def main(address: str) -> Answers:
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return {
            **predict(stub),
            **classify_and_regress(stub),
            **status_and_metadata(stub, channel),
            "refusals": refusals(stub),
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
