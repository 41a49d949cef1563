"""TensorFlow Serving's gRPC API, asked with its own generated stubs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer

PROGRAM = Path(__file__).parent.parent / "clients/tensorflow_serving_stubs.py"


@pytest.fixture(scope="module")
def answers(server: RunningServer, clients_python: Path) -> dict[str, Any]:
    """Everything that the stubs were answered."""
    command = [clients_python, PROGRAM, f"127.0.0.1:{server.grpc_port}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_predict_answers_and_says_which_version_did(answers: dict[str, Any]) -> None:
    assert answers["y"] == [3.5, 4.0, 5.5]
    assert answers["answered by"] == ["half_plus_two", 2]


def test_several_inputs_raw_and_typed_and_an_output_filter(answers: dict[str, Any]) -> None:
    assert answers["both"] == {"total": [16.0, 35.0], "largest": [3.0, 6.0]}
    assert answers["filtered"] == {"largest": [3.0, 6.0]}


def test_bytes_come_back_as_they_went(answers: dict[str, Any]) -> None:
    assert answers["echo"] == ["61", "c3b6"]


def test_versions_and_labels_are_followed(answers: dict[str, Any]) -> None:
    assert answers["by version"] == [[2.5, 3.0, 4.5], 1]
    assert answers["by label"] == [[2.5, 3.0, 4.5], 1]
    assert answers["canary"] == [3.5, 4.0, 5.5]


def test_classify_regress_and_multi_inference(answers: dict[str, Any]) -> None:
    assert answers["classes"] == [
        [["rose", 1.0], ["tulip", 2.0], ["both", 3.0]],
        [["rose", 3.0], ["tulip", 4.0], ["both", 7.0]],
    ]
    assert answers["values"] == [11.0, 21.0]
    assert answers["multi"] == [31.0, 41.0]


def test_status_lists_versions_by_number_and_label(answers: dict[str, Any]) -> None:
    assert answers["status"] == [[2, "AVAILABLE", 0], [1, "AVAILABLE", 0]]
    assert answers["status by label"] == [1]
    assert answers["no such status"][0] == "NOT_FOUND"


def test_metadata_tells_dtypes_and_shapes(answers: dict[str, Any]) -> None:
    assert answers["signature"] == {
        "a": ["DT_FLOAT", [-1, 3]],
        "b": ["DT_INT64", [-1]],
        "total": ["DT_FLOAT", [-1]],
        "largest": ["DT_FLOAT", [-1]],
    }


WRONG = {
    "no such model": ("NOT_FOUND", "Latest(missing)"),
    "no such version": ("NOT_FOUND", "9"),
    "no such label": ("NOT_FOUND", "nightly"),
    "no such signature": ("INVALID_ARGUMENT", "other"),
    "no such input": ("INVALID_ARGUMENT", "z"),
    "missing input": ("INVALID_ARGUMENT", "b"),
    "wrong shape": ("INVALID_ARGUMENT", "x"),
    "more values than the shape": ("INVALID_ARGUMENT", "x"),
    "negative dimension": ("INVALID_ARGUMENT", "x"),
    "wrong dtype": ("INVALID_ARGUMENT", "x"),
    "no such output": ("INVALID_ARGUMENT", "z"),
    "output twice": ("INVALID_ARGUMENT", "y"),
    "regressor asked to classify": ("INVALID_ARGUMENT", ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_carry_their_code_and_name_what_is_wrong(answers: dict[str, Any], what: str) -> None:
    code, names = WRONG[what]
    got, message = answers["refusals"][what]
    assert got == code, message
    assert names in message


def test_a_call_ends_at_its_deadline_or_is_refused_before(answers: dict[str, Any]) -> None:
    # Refused at once where it is known how slow the model is.
    assert answers["refusals"]["out of time"][0] in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
