"""TensorFlow Serving's REST API, and what stands beside it, asked with curl."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer

MODEL = "/v1/models/half_plus_two"


def curl(server: RunningServer, path: str, *options: str) -> tuple[int, Any]:
    """Ask with curl; the status, and the JSON that was answered."""
    status, body = curl_bytes(server, path, *options)
    return status, json.loads(body)


def curl_bytes(server: RunningServer, path: str, *options: str) -> tuple[int, bytes]:
    command = ["curl", "--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"]
    command += [*options, f"http://127.0.0.1:{server.http_port}{path}"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    body, _, status = printed.rpartition(b"\n")
    return int(status), body


def predict(server: RunningServer, path: str, value: object, *options: str) -> tuple[int, Any]:
    return curl(server, f"{path}:predict", "--data", json.dumps(value), *options)


def test_rows_are_answered_with_rows(server: RunningServer) -> None:
    assert predict(server, MODEL, {"instances": [1.0, 2.0, 5.0]}) == (200, {"predictions": [3.5, 4.0, 5.5]})


def test_columns_are_answered_with_columns(server: RunningServer) -> None:
    assert predict(server, MODEL, {"inputs": {"x": [1.0, 2.0]}}) == (200, {"outputs": [3.5, 4.0]})


def test_several_inputs_and_outputs_go_by_name(server: RunningServer) -> None:
    rows = {"instances": [{"a": [1, 2, 3], "b": 10}, {"a": [4, 5, 6], "b": 20}]}
    answer = {"predictions": [{"total": 16.0, "largest": 3.0}, {"total": 35.0, "largest": 6.0}]}
    assert predict(server, "/v1/models/pair", rows) == (200, answer)
    columns = {"inputs": {"a": [[1, 2, 3], [4, 5, 6]], "b": [10, 20]}}
    assert predict(server, "/v1/models/pair", columns) == (
        200,
        {"outputs": {"total": [16.0, 35.0], "largest": [3.0, 6.0]}},
    )


def test_strings_come_as_text_or_base64(server: RunningServer) -> None:
    rows = {"instances": ["zwölf", {"b64": "b25l"}]}
    assert predict(server, "/v1/models/words", rows) == (200, {"predictions": ["zwölf", "one"]})


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/versions/1", 3.0), ("/versions/2", 4.0), ("/labels/stable", 3.0), ("/labels/canary", 4.0)],
)
def test_a_version_or_a_label_may_be_named(server: RunningServer, path: str, expected: float) -> None:
    assert predict(server, MODEL + path, {"instances": [2.0]}) == (200, {"predictions": [expected]})


def test_infinities_and_not_a_number_go_in_and_come_out(server: RunningServer) -> None:
    body = '{"instances": [NaN, Infinity, -Infinity]}'
    status, answer = curl_bytes(server, f"{MODEL}:predict", "--data", body)
    assert status == 200
    assert b"".join(answer.split()) == b'{"predictions":[NaN,Infinity,-Infinity]}'


def test_classify_and_regress_answer_under_results(server: RunningServer) -> None:
    body = json.dumps({"examples": [{"x": [1.0, 2.0]}, {"x": [3.0, 4.0]}]})
    status, answer = curl(server, "/v1/models/flowers:classify", "--data", body)
    assert status == 200
    assert answer == {
        "results": [
            [["rose", 1.0], ["tulip", 2.0], ["both", 3.0]],
            [["rose", 3.0], ["tulip", 4.0], ["both", 7.0]],
        ]
    }
    body = json.dumps({"examples": [{"x": [1.0]}, {"x": [2.0]}]})
    assert curl(server, "/v1/models/price:regress", "--data", body) == (200, {"results": [11.0, 21.0]})


def test_status_lists_the_versions_and_one_of_them(server: RunningServer) -> None:
    ok = {"error_code": "OK", "error_message": ""}
    two, one = ({"version": version, "state": "AVAILABLE", "status": ok} for version in ("2", "1"))
    assert curl(server, MODEL) == (200, {"model_version_status": [two, one]})
    assert curl(server, f"{MODEL}/versions/1") == (200, {"model_version_status": [one]})
    assert curl(server, f"{MODEL}/labels/canary") == (200, {"model_version_status": [two]})


def test_metadata_tells_names_dtypes_and_shapes(server: RunningServer) -> None:
    status, answer = curl(server, "/v1/models/pair/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "pair", "signature_name": "", "version": "7"}
    definition = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert set(definition["inputs"]) == {"a", "b"}
    assert definition["inputs"]["a"]["dtype"] == "DT_FLOAT"
    assert [one["size"] for one in definition["inputs"]["a"]["tensor_shape"]["dim"]] == ["-1", "3"]
    assert set(definition["outputs"]) == {"total", "largest"}


def test_bodies_are_gzipped_both_ways(server: RunningServer, tmp_path: Path) -> None:
    body = tmp_path / "body.json.gz"
    body.write_bytes(gzip.compress(json.dumps({"instances": [float(x) for x in range(5000)]}).encode()))
    options = ["--header", "Content-Encoding: gzip", "--data-binary", f"@{body}"]
    status, plain = curl_bytes(server, f"{MODEL}:predict", *options)
    assert status == 200
    accepting = ["--header", "Accept-Encoding: gzip"]
    status, packed = curl_bytes(server, f"{MODEL}:predict", *options, *accepting)
    assert status == 200
    assert gzip.decompress(packed) == plain
    assert json.loads(plain)["predictions"][4999] == 2502.5


WRONG = {
    "an unknown model": ("/v1/models/missing", '{"instances": [1]}', 404, "missing"),
    "an unknown version": (f"{MODEL}/versions/9", '{"instances": [1]}', 404, "9"),
    "an unknown label": (f"{MODEL}/labels/nightly", '{"instances": [1]}', 404, "nightly"),
    "a version that is no number": (f"{MODEL}/versions/one", '{"instances": [1]}', 400, "one"),
    "an unknown input": (MODEL, '{"inputs": {"z": [1]}}', 400, "z"),
    "a missing input": ("/v1/models/pair", '{"inputs": {"a": [[1, 2, 3]]}}', 400, "b"),
    "a wrong shape": (MODEL, '{"instances": [[1, 2]]}', 400, "x"),
    "a ragged list": ("/v1/models/pair", '{"inputs": {"a": [[1, 2, 3], [1]], "b": [1, 2]}}', 400, "a"),
    "text for a number": (MODEL, '{"instances": ["one"]}', 400, "x"),
    "a number for text": ("/v1/models/words", '{"instances": [1]}', 400, "text"),
    "both formats": (MODEL, '{"instances": [1], "inputs": [1]}', 400, "inputs"),
    "neither format": (MODEL, "{}", 400, "instances"),
    "no rows": (MODEL, '{"instances": []}', 400, ""),
    "bad JSON": (MODEL, '{"instances": [1', 400, ""),
    "no body": (MODEL, "", 400, ""),
    "bad base64": ("/v1/models/words", '{"instances": [{"b64": "!!!"}]}', 400, "64"),
    "JSON that is too deep": (MODEL, f'{{"instances": {"[" * 100_000}{"]" * 100_000}}}', 400, ""),
    "an unknown signature": (MODEL, '{"instances": [1], "signature_name": "no"}', 400, "no"),
}


@pytest.mark.parametrize(("path", "body", "status", "names"), WRONG.values(), ids=WRONG)
def test_invalid_requests_get_their_status_and_an_error_that_names_the_fault(
    server: RunningServer, tmp_path: Path, path: str, body: str, status: int, names: str
) -> None:
    file = tmp_path / "body"
    file.write_text(body, "utf-8")
    got, answer = curl(server, f"{path}:predict", "--data-binary", f"@{file}")
    assert got == status, answer
    assert set(answer) == {"error"}
    assert names in answer["error"]


def test_an_unknown_model_reads_as_in_tensorflow_serving(server: RunningServer) -> None:
    status, answer = predict(server, "/v1/models/missing", {"instances": [1]})
    assert status == 404
    assert "Servable not found for request: Latest(missing)" in answer["error"]


def test_a_wrong_method_is_told_the_right_one(server: RunningServer) -> None:
    status, head = curl_bytes(server, f"{MODEL}:predict", "--include")
    assert status == 405
    assert b"allow: post" in head.lower()


def test_health_is_for_every_client(server: RunningServer) -> None:
    for question in ("live", "ready"):
        assert curl(server, f"/v2/health/{question}") == (200, {"live": True, "ready": True})


def test_metrics_are_where_tensorflow_serving_has_them(server: RunningServer) -> None:
    predict(server, MODEL, {"instances": [1.0]})
    status, text = curl_bytes(server, "/monitoring/prometheus/metrics")
    assert status == 200
    assert b'headrace_requests_total{model="half_plus_two",version="2"}' in text


def test_a_request_ends_at_its_deadline_or_is_refused_before(server: RunningServer) -> None:
    deadline = ["--header", "X-Request-Timeout-Ms: 100"]
    status, answer = predict(server, "/v1/models/slow", {"instances": [0.5]}, *deadline)
    assert status in {503, 504}, answer
    status, answer = predict(server, MODEL, {"instances": [1.0]}, "--header", "X-Request-Timeout-Ms: never")
    assert status == 400
    assert "x-request-timeout-ms" in answer["error"]


def test_the_line_that_the_server_prints_works_as_it_is(server: RunningServer) -> None:
    server.wait_for(
        lambda: any(line.strip().startswith("curl ") for line in server.output), "the line of curl"
    )
    line = next(line for line in server.output if line.strip().startswith("curl "))
    command = [*shlex.split(line), "--silent", "--max-time", "20"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert "predictions" in json.loads(printed)
