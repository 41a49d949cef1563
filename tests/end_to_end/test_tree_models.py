"""Models of a data frame are published as they were saved, and answer by column in each protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace import example
from headrace.cli.main import main
from tests.conformance import lightgbm_models, xgboost_models
from tests.conformance.tree_data import frame
from tests.running_server import RunningServer

ROWS = 9  # the ages of the first and the eighth are missing


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models, files = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("files")
    lightgbm_models.clicks().save_model(files / "model.txt")
    xgboost_models.clicks().save_model(files / "model.json")
    assert main(["publish", str(models / "lightgbm"), str(files / "model.txt")]) == 0
    assert main(["publish", str(models / "xgboost"), str(files / "model.json")]) == 0
    assert main(["publish", str(models / "named"), str(files / "model.txt")]) == 0
    (models / "named/headrace.toml").write_text('[signature]\nlabels = ["leaves", "stays"]\ntop = 1\n')
    example.write(models)
    with RunningServer(models) as running:
        yield running


def expected(model: str) -> list[float]:
    data = frame(300)[:ROWS]
    if model == "lightgbm":
        return list(lightgbm_models.clicks().predict(data, num_threads=1))
    return [float(one) for one in xgboost_models.clicks().inplace_predict(data)]


def rows() -> list[dict[str, Any]]:
    """The data frame's rows as JSON: missing values are nulls."""
    found: list[dict[str, Any]] = json.loads(frame(300)[:ROWS].to_json(orient="records"))
    assert found[0]["age"] is None
    return found


each_model = pytest.mark.parametrize("model", ["lightgbm", "xgboost"])


@each_model
def test_rows_of_tensorflow_serving(model: str, server: RunningServer) -> None:
    status, answer = server.post(f"/v1/models/{model}:predict", {"instances": rows()})
    assert status == 200, answer
    np.testing.assert_allclose(answer["predictions"], expected(model), rtol=1e-6)


@each_model
def test_examples_of_regress(model: str, server: RunningServer) -> None:
    status, answer = server.post(f"/v1/models/{model}:regress", {"examples": rows()[1:7]})
    assert status == 200, answer
    np.testing.assert_allclose(answer["results"], expected(model)[1:7], rtol=1e-6)


def test_settings_name_the_two_classes_of_one_probability(server: RunningServer) -> None:
    status, answer = server.post("/v1/models/named:predict", {"instances": rows()})
    assert status == 200, answer
    seconds = np.array(expected("lightgbm"))
    found = answer["predictions"]
    assert [row["label"] for row in found] == ["stays" if one > 0.5 else "leaves" for one in seconds]
    np.testing.assert_allclose([row["score"] for row in found], np.maximum(seconds, 1 - seconds), rtol=1e-6)


@each_model
def test_columns_of_the_open_inference_protocol(model: str, server: RunningServer) -> None:
    data = rows()[1:7]
    kinds = {"age": "FP64", "country": "BYTES", "plan": "INT32", "visits": "FP32"}
    inputs = [
        {"name": name, "datatype": kind, "shape": [len(data)], "data": [row[name] for row in data]}
        for name, kind in kinds.items()
    ]
    status, answer = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, answer
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected(model)[1:7], rtol=1e-6)


@each_model
def test_an_unknown_column_is_an_error_that_names_it(model: str, server: RunningServer) -> None:
    status, answer = server.post(f"/v1/models/{model}:predict", {"instances": [rows()[1] | {"sex": 1}]})
    assert status == 400
    assert "sex" in answer["error"]


@each_model
def test_explanations_add_up_to_the_raw_score(model: str, server: RunningServer) -> None:
    status, answer = server.post(f"/v1/models/{model}:explain", {"instances": rows()})
    assert status == 200, answer
    names = {"age", "country", "plan", "visits", "expected_value"}
    assert all(set(row) == names for row in answer["predictions"])
    scores = np.array([sum(row.values()) for row in answer["predictions"]])
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), expected(model), rtol=1e-5)


@each_model
def test_every_protocol_explains_by_the_name_of_the_signature(model: str, server: RunningServer) -> None:
    body: dict[str, Any] = {"instances": rows()[1:7]}
    _, wanted = server.post(f"/v1/models/{model}:explain", body)
    status, answer = server.post(f"/v1/models/{model}:predict", {**body, "signature_name": "explain"})
    assert (status, answer) == (200, wanted)
    kinds = {"age": "FP64", "country": "BYTES", "plan": "INT32", "visits": "FP32"}
    inputs = [
        {"name": name, "datatype": kind, "shape": [6], "data": [row[name] for row in body["instances"]]}
        for name, kind in kinds.items()
    ]
    explain = {"inputs": inputs, "parameters": {"signature_name": "explain"}}
    status, answer = server.post(f"/v2/models/{model}/infer", explain)
    assert status == 200, answer
    columns = {one["name"]: one["data"] for one in answer["outputs"]}
    assert columns == {name: [row[name] for row in wanted["predictions"]] for name in columns}


def test_a_large_body_is_explained_row_by_row(server: RunningServer) -> None:
    many = rows()[1:7] * 1000
    status, answer = server.post("/v1/models/lightgbm:explain", {"instances": many})
    assert status == 200
    _, few = server.post("/v1/models/lightgbm:explain", {"instances": many[:6]})
    assert answer["predictions"] == few["predictions"] * 1000


def test_another_signature_is_not_explained(server: RunningServer) -> None:
    body = {"instances": rows(), "signature_name": "serving_default"}
    status, answer = server.post("/v1/models/lightgbm:explain", body)
    assert status == 400
    assert "signature_name: expected 'explain' or none" in answer["error"]


def test_a_model_that_cannot_explain_says_so(server: RunningServer) -> None:
    status, answer = server.post("/v1/models/half_plus_two:explain", {"instances": [1.0]})
    assert status == 501
    assert "explain" in answer["error"]
