"""Requests that leave values out of a click model's fields, over both protocols, answer as padded ones do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import Tensors
from headrace.frontends.calls import Account, GrpcCall, HttpCall
from headrace.frontends.oip.grpc import grpc_methods as oip_methods
from headrace.frontends.oip.rest import http_routes as oip_routes
from headrace.frontends.tfserving.rest import http_routes
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import protos
from headrace.model.servable import Signature, TensorSpec
from headrace.runtimes.ctr import CtrServable, load
from headrace.runtimes.options import RuntimeOptions
from tests.conformance.ctr_models import write
from tests.unit.frontends.oip.doubles import LoadedDouble, run
from tests.unit.frontends.tfserving.doubles import ServiceDouble, call, http

ROWS: list[dict[str, Any]] = [
    {"user": "user 1", "hour": 3, "topics": [5], "ad": 9, "words": ["blue"], "age": None, "image": None},
    {"user": None, "hour": None, "topics": [], "ad": 4, "words": [], "age": 0.5, "image": [1.0, None, 2, 3]},
    {"user": "u", "hour": 1, "topics": 7, "ad": None, "words": "blue", "age": 1.0, "image": [0.0] * 4},
]
for row in ROWS:
    row["price"] = 1.5

WHOLE: Tensors = {
    "user": np.array([b"user 1", b"", b"u"], object),
    "hour": np.array([3, -1, 1]),
    "topics": np.array([[5, -1, -1], [-1] * 3, [7, -1, -1]]),
    "ad": np.array([9, 4, -1]),
    "words": np.array([[b"blue", b""], [b"", b""], [b"blue", b""]], object),
    "age": np.array([0, 0.5, 1], np.float32),
    "image": np.array([[0] * 4, [1, 0, 2, 3], [0] * 4], np.float32),
    "price": np.full(3, 1.5, np.float32),
}
DATATYPES = {"user": "BYTES", "words": "BYTES", "age": "FP32", "image": "FP32", "price": "FP32"}
SEVERAL = {"topics": 3, "words": 2, "image": 4}


@pytest.fixture(scope="module")
def servable(tmp_path_factory: pytest.TempPathFactory) -> CtrServable:
    directory = tmp_path_factory.mktemp("model")
    write(directory, "fm")
    return load(directory / "model.ctr", RuntimeOptions())


@pytest.fixture
def model(servable: CtrServable) -> LoadedDouble:
    return LoadedDouble(servable.signatures["serving_default"], servable.predict, name="ctr")


@pytest.fixture
def wanted(servable: CtrServable) -> Any:
    return pytest.approx(servable.predict(WHOLE)["probability"].tolist(), rel=1e-6)


def infer(model: LoadedDouble, body: Any) -> Any:
    found = Router(oip_routes(ServiceDouble(model))).match("POST", "/v2/models/ctr/infer")
    assert found.handler is not None
    content = json.dumps(body).encode()
    reply = run(found.handler(HttpCall("POST", "/v2/models/ctr/infer", found.parameters, body=content)))
    return json.loads(reply.body)["outputs"][0]["data"]


def test_tensorflow_serving_in_rows(model: LoadedDouble, wanted: Any) -> None:
    answer = http(ServiceDouble(model), "POST", "/v1/models/ctr:predict", {"instances": ROWS})
    assert answer["predictions"] == wanted


def test_tensorflow_serving_in_columns(model: LoadedDouble, wanted: Any) -> None:
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    answer = http(ServiceDouble(model), "POST", "/v1/models/ctr:predict", {"inputs": columns})
    assert answer["outputs"] == wanted


def test_the_open_inference_protocol_with_nested_lists(model: LoadedDouble, wanted: Any) -> None:
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES.get(name, "INT64"),
            "shape": [3, SEVERAL[name]] if name in SEVERAL else [3],
            "data": [row[name] for row in ROWS],
        }
        for name in ROWS[0]
    ]
    assert infer(model, {"inputs": inputs}) == wanted


def test_the_open_inference_protocol_with_a_smaller_shape_and_flat_values(
    model: LoadedDouble, servable: CtrServable
) -> None:
    given = {name: values[:1] for name, values in WHOLE.items()}
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES.get(name, "INT64"),
            "shape": [1, 1] if name in ("topics", "words") else [*values.shape],
            "data": [one.decode() if isinstance(one, bytes) else one for one in values.ravel().tolist()],
        }
        for name, values in given.items()
    ]
    for one in inputs:
        if one["name"] in ("topics", "words"):
            one["data"] = one["data"][:1]
    wanted = servable.predict(given)["probability"].tolist()
    assert infer(model, {"inputs": inputs}) == pytest.approx(wanted, rel=1e-6)


def smaller() -> Tensors:
    """All rows with one topic and one word, which is what they have."""
    return {name: values[:, :1] if name in ("topics", "words") else values for name, values in WHOLE.items()}


def test_tensorflow_serving_over_grpc_with_a_smaller_shape(model: LoadedDouble, wanted: Any) -> None:
    request = protos.message("tensorflow.serving.PredictRequest")(model_spec={"name": "ctr"})
    for name, values in smaller().items():
        tensor = request.inputs[name]
        tensor.dtype = {"O": 7, "f": 1, "i": 9}[values.dtype.kind]
        for size in values.shape:
            tensor.tensor_shape.dim.add(size=size)
        if values.dtype == object:
            tensor.string_val.extend(values.ravel().tolist())
        else:
            tensor.tensor_content = values.tobytes()
    for _ in range(3):  # from the second on, what repeats may be recognised
        response = call(ServiceDouble(model), "Predict", request)
        assert list(response.outputs["probability"].float_val) == wanted


def test_the_open_inference_protocol_over_grpc_with_a_smaller_shape(model: LoadedDouble, wanted: Any) -> None:
    request = protos.message("inference.ModelInferRequest")(model_name="ctr")
    for name, values in smaller().items():
        contents = {"O": "bytes_contents", "f": "fp32_contents", "i": "int64_contents"}[values.dtype.kind]
        request.inputs.add(
            name=name,
            datatype=DATATYPES.get(name, "INT64"),
            shape=values.shape,
            contents={contents: values.ravel().tolist()},
        )
    (method,) = [one for one in oip_methods(ServiceDouble(model)) if one.path.endswith("/ModelInfer")]
    assert method.unary is not None
    answered = run(method.unary(request.SerializeToString(), GrpcCall()))
    (output,) = protos.message("inference.ModelInferResponse").FromString(answered).outputs
    assert list(output.contents.fp32_contents) == wanted


def test_examples_over_rest_may_lack_features(model: LoadedDouble, wanted: Any) -> None:
    examples = [{**row} for row in ROWS]
    examples[1]["image"] = [1.0, 0.0, 2, 3]
    del examples[1]["hour"]
    answer = http(ServiceDouble(model), "POST", "/v1/models/ctr:regress", {"examples": examples})
    assert answer["results"] == wanted


def test_examples_over_grpc_may_lack_features(model: LoadedDouble, wanted: Any) -> None:
    request = protos.message("tensorflow.serving.RegressionRequest")(model_spec={"name": "ctr"})
    for index in range(3):
        features = request.input.example_list.examples.add().features.feature
        for name, values in WHOLE.items():
            kind = {"O": "bytes_list", "f": "float_list", "i": "int64_list"}[values.dtype.kind]
            there = [one for one in np.atleast_1d(values[index]).tolist() if one not in (b"", -1)]
            if there:
                getattr(features[name], kind).value.extend(there)
    response = call(ServiceDouble(model), "Regress", request)
    assert [one.value for one in response.result.regressions] == wanted


def test_more_values_than_the_field_has_are_refused(model: LoadedDouble) -> None:
    rows = [{**ROWS[0], "topics": [1, 2, 3, 4]}]
    with pytest.raises(InvalidRequest, match=r"topics: expected topics INT64 \[rows, 3\]"):
        http(ServiceDouble(model), "POST", "/v1/models/ctr:predict", {"instances": rows})


def wide() -> LoadedDouble:
    """A model that takes up to 10,000 numbers a row, and says how many it got."""
    taken = TensorSpec("x", np.dtype(np.int64), (10_000,), absent=-1, shorter=True)
    signature = Signature("serving_default", (taken,), (TensorSpec("n", np.dtype(np.float32), ()),))
    return LoadedDouble(signature, lambda inputs: {"n": np.full(len(inputs["x"]), 1, np.float32)}, name="ctr")


def infer_rows(model: LoadedDouble, rows: list[Any]) -> Any:
    tensor = {"name": "x", "datatype": "INT64", "shape": [len(rows), 10_000], "data": rows}
    return infer(model, {"inputs": [tensor]})


def predict_rows(model: LoadedDouble, rows: list[Any]) -> Any:
    return http(ServiceDouble(model), "POST", "/v1/models/ctr:predict", {"instances": rows})["predictions"]


def regress_rows(model: LoadedDouble, rows: list[Any]) -> Any:
    examples = [{"x": row} for row in rows]
    return http(ServiceDouble(model), "POST", "/v1/models/ctr:regress", {"examples": examples})["results"]


@pytest.mark.parametrize("ask", [predict_rows, regress_rows])
@pytest.mark.parametrize("rows", [1_800, 12_000], ids=["small", "large"])
@pytest.mark.parametrize("first", [[], [1]], ids=["equal", "ragged"])
def test_values_that_are_put_in_count_as_if_they_had_come(ask: Any, rows: int, first: list[int]) -> None:
    """Some kilobytes of empty lists were filled up to millions of values, at once."""
    with pytest.raises(TooLarge, match=r"^x: expected at most 1048576 values.*send fewer rows at once"):
        ask(wide(), [first, *[[]] * rows])


@pytest.mark.parametrize("first", [[], [1]], ids=["equal", "ragged"])
def test_values_put_in_over_the_open_inference_protocol_count_too(first: list[int]) -> None:
    with pytest.raises(TooLarge, match=r"^x: expected at most \d+ values"):
        infer_rows(wide(), [first, *[[]] * 12_000])


@pytest.mark.parametrize("ask", [predict_rows, regress_rows, infer_rows])
def test_a_few_short_rows_are_filled_up(ask: Any) -> None:
    assert ask(wide(), [[], [1], [2, 3]]) == [1, 1, 1]


@pytest.mark.parametrize("ask", [predict_rows, regress_rows, infer_rows])
def test_short_rows_that_came_as_they_are_never_told_to_come_uncompressed(ask: Any) -> None:
    """How few bytes a plain body has says nothing of compression, however much is put in."""
    assert ask(wide(), [[1], *[[]] * 20]) == [1] * 21
    with pytest.raises(TooLarge, match=r"^x: .*\(limits\.max_values\).*; send fewer rows at once") as refused:
        ask(wide(), [[1], *[[]] * 1_800])
    assert "compress" not in refused.value.message


def test_what_a_large_body_spreads_is_held_while_it_is_answered() -> None:
    specs = (
        TensorSpec("user", np.dtype(np.float32), (100,), context=True),
        TensorSpec("ad", np.dtype(np.int64), ()),
    )
    answer = TensorSpec("n", np.dtype(np.float32), ())
    model = LoadedDouble(
        Signature("serving_default", specs, (answer,)),
        lambda inputs: {"n": inputs["user"][:, 0]},
        name="ctr",
    )
    for rows in (100, 10_000):
        held: list[int] = []
        body = json.dumps({"inputs": {"user": [[1.0] * 100], "ad": [1] * rows}}).encode()
        found = Router(http_routes(ServiceDouble(model))).match("POST", "/v1/models/ctr:predict")
        assert found.handler is not None
        asked = HttpCall("POST", "", found.parameters, body=body)
        asked.account = Account(held.append)
        run(found.handler(asked))
        assert rows * 100 * 4 in held
