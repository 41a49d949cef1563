"""Classify, Regress and MultiInference of real SavedModels, which read serialized Examples themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tensorflow_models import write_estimator, write_reader
from tests.running_server import RunningServer

pytestmark = pytest.mark.rest  # TensorFlow saves a model, and another is loaded

PROGRAM = Path(__file__).parent.parent / "clients/tensorflow_examples.py"
METHODS = {
    "serving_default": "tensorflow/serving/classify",
    "regression": "tensorflow/serving/regress",
    "predict": "tensorflow/serving/predict",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of one model as estimators export them, and of one that TensorFlow 2 saved."""
    models = tmp_path_factory.mktemp("models")
    for name, write in (("estimator", write_estimator), ("reader", write_reader)):
        (models / name / "1").mkdir(parents=True)
        write(models / name / "1")
    with RunningServer(models) as running:
        yield running


@pytest.fixture(scope="module")
def answers(server: RunningServer, clients_python: Path) -> dict[str, Any]:
    """Everything that the stubs were answered."""
    command = [clients_python, PROGRAM, f"127.0.0.1:{server.grpc_port}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_classify_and_regress_send_whole_examples(answers: dict[str, Any]) -> None:
    assert answers["classes"] == [[["Ulm", 1.5], ["other", 3.0]], [["nowhere", 2.0], ["other", 4.0]]]
    assert answers["values"] == [15.0, 20.0]
    assert answers["values of TensorFlow 2"] == [15.0, 20.0]


def test_an_examples_features_override_its_context(answers: dict[str, Any]) -> None:
    assert answers["in context"] == [[["Ulm", 1.5], ["other", 3.0]], [["Rom", 9.0], ["other", 18.0]]]


def test_several_signatures_answer_the_same_examples(answers: dict[str, Any]) -> None:
    assert answers["together"] == [answers["classes"], answers["values"]]


def test_predict_takes_examples_that_the_caller_has_serialized(answers: dict[str, Any]) -> None:
    assert answers["predicted"] == [1.5, 3.0, 2.0, 4.0]


def test_an_example_that_the_model_cannot_read_is_an_invalid_argument(answers: dict[str, Any]) -> None:
    code, said = answers["an age is missing"]
    assert code == "INVALID_ARGUMENT"
    assert "age" in said


def test_metadata_names_each_signatures_own_method(answers: dict[str, Any], server: RunningServer) -> None:
    assert answers["methods"] == METHODS
    status, body = server.get("/v1/models/estimator/metadata")
    assert status == 200
    found = json.loads(body)["metadata"]["signature_def"]["signature_def"]
    assert {name: one["method_name"] for name, one in found.items()} == METHODS


def test_classify_and_regress_over_rest(server: RunningServer) -> None:
    examples = [{"age": 1.5, "city": "Ulm"}, {"age": [2.0]}]
    assert server.post("/v1/models/estimator:classify", {"examples": examples}) == (
        200,
        {"results": [[["Ulm", 1.5], ["other", 3.0]], [["nowhere", 2.0], ["other", 4.0]]]},
    )
    body = {"signature_name": "regression", "context": {"age": 9.0}, "examples": [{"age": 1.5}, {}]}
    assert server.post("/v1/models/estimator:regress", body) == (200, {"results": [15.0, 90.0]})
    status, body = server.post("/v1/models/reader:regress", {"examples": [{"age": "young"}]})
    assert (status, "age" in body["error"]) == (400, True)
