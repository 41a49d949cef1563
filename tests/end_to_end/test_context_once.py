"""One context row and many candidates, over every way in: the answers are those of whole rows."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_DTYPE, Array
from headrace.frontends.wire import protos
from headrace.serving.engine import Engine, ModelSpec
from tests.conformance.ctr_models import SCHEMA, field_inputs, write
from tests.running_server import RunningServer

ROWS = 7
CONTEXT = [field.name for field in SCHEMA.fields if field.context]


def whole_rows() -> dict[str, Array]:
    """All rows have the context of the first."""
    inputs = dict(field_inputs(ROWS))
    for name in CONTEXT:
        inputs[name] = np.repeat(inputs[name][:1], ROWS, axis=0)
    return inputs


def once() -> dict[str, Array]:
    return {name: array[:1] if name in CONTEXT else array for name, array in whole_rows().items()}


def joined(shared: int) -> dict[str, Array]:
    """The inputs of the signature ``rows``; the context in so many rows."""
    random = np.random.default_rng(0)
    context = random.integers(0, 24, (1, 5)).astype(np.uint32)
    return {
        "context": np.repeat(context, shared, axis=0),
        "context_dense": np.full((shared, 1), 0.5, np.float32),
        "candidate": random.integers(0, 200, (ROWS, 3)).astype(np.uint32),
        "candidate_dense": random.normal(size=(ROWS, 5)).astype(np.float32),
    }


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "ctr" / "1").mkdir(parents=True)
    write(tmp_path / "ctr" / "1", "deepfm")
    return tmp_path


def predict(models: Path, *requests: tuple[str, dict[str, Array]]) -> list[list[float]]:
    async def ask() -> list[list[float]]:
        async with Engine(models) as engine:
            answers = await asyncio.gather(
                *[engine.predict(ModelSpec("ctr", signature=name), inputs) for name, inputs in requests]
            )
            return [answer["probability"].tolist() for answer in answers]

    return asyncio.run(ask())


def test_in_process_once_is_the_same_as_whole_also_merged(models: Path) -> None:
    fields_whole, fields_once, rows_whole, rows_once = predict(
        models, ("", whole_rows()), ("", once()), ("rows", joined(ROWS)), ("rows", joined(1))
    )
    assert fields_once == fields_whole
    assert rows_once == rows_whole
    assert len(rows_once) == ROWS


def test_wrong_values_name_input_row_and_value(models: Path) -> None:
    def worse(name: str, change: Callable[[Array], None]) -> None:
        inputs = joined(1)
        change(inputs[name])
        predict(models, ("rows", inputs))

    with pytest.raises(InvalidRequest, match=r"candidate: row 2, column 0 \(ad\): expected a bucket.*300"):
        worse("candidate", lambda array: array.__setitem__((2, 0), 300))
    with pytest.raises(InvalidRequest, match="candidate_dense: row 1: expected a finite number, got nan"):
        worse("candidate_dense", lambda array: array.__setitem__((1, 0), np.nan))
    with pytest.raises(InvalidRequest, match="price: row 4: expected a finite number, got inf"):
        predict(models, ("", {**once(), "price": np.array([0, 0, 0, 0, np.inf, 0, 0], np.float32)}))


def post(server: RunningServer, path: str, body: object) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def call(server: RunningServer, method: str, request: Any, kind: str) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        unary = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protos.message(kind).FromString,
        )
        return unary(request, timeout=20)


def open_inference_over_rest(server: RunningServer, inputs: dict[str, Array]) -> list[float]:
    tensors = [
        {"name": name, "datatype": BY_DTYPE[array.dtype].oip, "shape": array.shape, "data": array.tolist()}
        for name, array in inputs.items()
    ]
    body = {"inputs": tensors, "parameters": {"signature_name": "rows"}}
    answer = post(server, "/v2/models/ctr/infer", body)
    values: list[float] = answer["outputs"][0]["data"]
    return values


def open_inference_over_grpc(server: RunningServer, inputs: dict[str, Array]) -> list[float]:
    request = protos.message("inference.ModelInferRequest")(model_name="ctr")
    request.parameters["signature_name"].string_param = "rows"
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=BY_DTYPE[array.dtype].oip, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    method = "/inference.GRPCInferenceService/ModelInfer"
    answer = call(server, method, request, "inference.ModelInferResponse")
    return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


def tensorflow_serving_over_rest(
    server: RunningServer, inputs: dict[str, Array], signature: str = "rows"
) -> list[float]:
    columns = {
        name: (np.char.decode(array.astype(bytes)) if array.dtype == object else array).tolist()
        for name, array in inputs.items()
    }
    answer = post(server, "/v1/models/ctr:predict", {"signature_name": signature, "inputs": columns})
    values: list[float] = answer["outputs"]
    return values


def tensorflow_serving_over_grpc(server: RunningServer, inputs: dict[str, Array]) -> list[float]:
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "ctr", "rows"
    for name, array in inputs.items():
        proto = request.inputs[name]
        proto.dtype = BY_DTYPE[array.dtype].tensorflow
        for size in array.shape:
            proto.tensor_shape.dim.add(size=size)
        proto.tensor_content = array.tobytes()
    method = "/tensorflow.serving.PredictionService/Predict"
    answer = call(server, method, request, "tensorflow.serving.PredictResponse")
    return [float(value) for value in answer.outputs["probability"].float_val]


@pytest.mark.rest
def test_over_both_protocols_and_both_transports(models: Path) -> None:
    (wanted,) = predict(models, ("rows", joined(ROWS)))
    ways = (
        open_inference_over_rest,
        open_inference_over_grpc,
        tensorflow_serving_over_rest,
        tensorflow_serving_over_grpc,
    )
    with RunningServer(models) as server:
        for way in ways:
            for _ in range(2):  # parsed, then recognised
                assert way(server, joined(1)) == pytest.approx(wanted, abs=1e-7), way.__name__
                assert way(server, joined(ROWS)) == pytest.approx(wanted, abs=1e-7), way.__name__


def test_regress_takes_what_examples_share_from_their_context(models: Path) -> None:
    (wanted,) = predict(models, ("", whole_rows()))

    def plain(name: str, row: int) -> Any:
        many = once()[name][row : row + 1].reshape(-1).tolist()
        return [one.decode() if isinstance(one, bytes) else one for one in many]

    names = [field.name for field in SCHEMA.fields if field.role != "label"]
    body = {
        "context": {name: plain(name, 0) for name in CONTEXT},
        "examples": [
            {name: plain(name, row) for name in names if name not in CONTEXT} for row in range(ROWS)
        ],
    }
    with RunningServer(models) as server:
        answer = post(server, "/v1/models/ctr:regress", body)
    assert answer["results"] == pytest.approx(wanted, abs=1e-6)
