"""The Open Inference Protocol, asked with tritonclient: HTTP, gRPC, both with asyncio, and a stream."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer

PROGRAM = Path(__file__).parent.parent / "clients/triton.py"


def run(python: Path, server: RunningServer, kind: str) -> dict[str, Any]:
    port = server.grpc_port if kind.startswith("grpc") else server.http_port
    ran = subprocess.run(
        [python, PROGRAM, kind, f"127.0.0.1:{port}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    answers: dict[str, Any] = json.loads(ran.stdout)
    return answers


@pytest.fixture(scope="module", params=["http", "http-asyncio", "grpc", "grpc-asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the clients asks."""
    return str(request.param)


@pytest.fixture(scope="module")
def answers(kind: str, server: RunningServer, clients_python: Path) -> dict[str, Any]:
    """Everything that one client was answered."""
    return run(clients_python, server, kind)


def test_health_tells_the_server_from_its_models(answers: dict[str, Any]) -> None:
    for question in ("live", "ready", "model ready", "version ready"):
        assert answers[question] is True, question
    assert answers["missing model ready"] is False


def test_metadata_is_complete(answers: dict[str, Any]) -> None:
    assert answers["server metadata"]["name"] == "headrace"
    assert "binary_tensor_data" in answers["server metadata"]["extensions"]
    metadata = answers["metadata"]
    assert (metadata["name"], metadata["platform"]) == ("pair", "onnxruntime_onnx")
    assert metadata["versions"] == ["7"]
    inputs = {
        one["name"]: (one["datatype"], [int(size) for size in one["shape"]]) for one in metadata["inputs"]
    }
    assert inputs == {"a": ("FP32", [-1, 3]), "b": ("INT64", [-1])}
    assert [one["name"] for one in metadata["outputs"]] == ["total", "largest"]


def test_the_configuration_is_in_tritons_words(answers: dict[str, Any]) -> None:
    config = answers["config"].get("config", answers["config"])
    assert config["name"] == "pair"
    assert config["max_batch_size"] > 0
    assert {one["name"]: one["data_type"] for one in config["input"]} == {"a": "TYPE_FP32", "b": "TYPE_INT64"}


def test_the_repository_lists_every_version(answers: dict[str, Any]) -> None:
    index = answers["index"]
    listed = index["models"] if isinstance(index, dict) else index
    ready = {(one["name"], one["version"]) for one in listed if one["state"] == "READY"}
    assert {("half_plus_two", "1"), ("half_plus_two", "2"), ("pair", "7"), ("words", "1")} <= ready


def test_statistics_count_what_was_answered(answers: dict[str, Any]) -> None:
    (statistics,) = answers["statistics"]["model_stats"]
    assert (statistics["name"], statistics["version"]) == ("pair", "7")
    assert int(statistics["inference_stats"]["success"]["count"]) >= 2
    assert int(statistics["execution_count"]) >= 1


def test_predictions_are_right(answers: dict[str, Any]) -> None:
    assert answers["y"] == [3.5, 4.0, 5.5]
    assert answers["stable"] == [2.5]
    assert answers["total"] == [16.0, 35.0]
    assert answers["async"] == [[number / 2 + 3] for number in range(8)]


def test_only_requested_outputs_come_back(answers: dict[str, Any]) -> None:
    assert answers["only largest"] == [[3.0, 6.0], True]


def test_strings_come_back_as_they_went(answers: dict[str, Any]) -> None:
    assert answers["echo"] == ["one", "zwölf", ""]


WRONG = {
    "no such model": ("404", "StatusCode.NOT_FOUND", "missing"),
    "no such version": ("404", "StatusCode.NOT_FOUND", "9"),
    "wrong shape": ("400", "StatusCode.INVALID_ARGUMENT", "x"),
    "wrong datatype": ("400", "StatusCode.INVALID_ARGUMENT", "x"),
    "no such output": ("400", "StatusCode.INVALID_ARGUMENT", "z"),
    "loading is off": ("400", "StatusCode.FAILED_PRECONDITION", "--admin"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_carry_their_code_and_name_what_is_wrong(
    kind: str, answers: dict[str, Any], what: str
) -> None:
    http, grpc, names = WRONG[what]
    status, message = answers[what]
    assert status == (grpc if kind.startswith("grpc") else http), message
    assert names in message


@pytest.mark.parametrize("kind", ["http", "http-asyncio"], indirect=True, scope="module")
def test_http_takes_json_and_compressed_bodies(answers: dict[str, Any]) -> None:
    (output,) = answers["as JSON"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [3], "data": [3.5, 4.0, 5.5]}
    assert answers["gzip"] is True
    assert answers["deflate"] is True


@pytest.mark.parametrize("kind", ["grpc"], indirect=True, scope="module")
def test_grpc_takes_compressed_messages_and_keeps_deadlines(answers: dict[str, Any]) -> None:
    assert answers["gzip"] == [3.5, 4.0, 5.5]
    assert answers["in time"] == [3.5]
    # Refused at once where it is known how slow the model is.
    assert answers["out of time"][0] in {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.UNAVAILABLE"}


def test_a_stream_goes_on_after_one_of_its_requests_failed(
    server: RunningServer, clients_python: Path
) -> None:
    answers = run(clients_python, server, "grpc-stream")
    assert answers["answered"] == {str(n): [n / 2 + 3] for n in range(20) if n != 7}
    assert len(answers["errors"]) == 1
    assert "missing" in answers["errors"][0]
