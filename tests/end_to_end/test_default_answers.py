"""A model that is too slow is answered for by its default, in time and flagged, in every protocol."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from headrace.frontends.wire import protos
from tests.faults.held import held_until
from tests.model_directories import SLOW, write
from tests.running_server import RunningServer

TRANSPORTS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}
FLAG = "headrace-answered-by"
SLOWLY = 1.5  # what holds the model until the tests are over
SECONDS = 1.0  # how long its callers wait then
PATIENCE_SECONDS = 30.0
FAST = SLOW.replace("time.sleep(float(seconds.max()))", "pass").replace("[len(seconds)]", "[7]")


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("place") / "models"
    slow, one = held_until(gate := models.parent / "gate"), "[batching]\ninstances = 8\n[default]\n"
    write(models, "values", 1, slow, one + "values = { rows = -1 }\n")
    write(models, "soon", 1, slow, one + "values = { rows = -1 }\nafter_seconds = 0.3\n")
    write(models, "another", 1, slow, one + 'model = "fast"\nafter_seconds = 0.3\n')
    write(models, "patient", 1, slow, one + 'model = "fast"\n')
    write(models, "failing", 1, SLOW, one + "values = { rows = -1 }\n")
    write(models, "fast", 3, FAST)
    write(models, "bare", 1, slow)
    with RunningServer(models, "--allow-code", *TRANSPORTS[request.param]) as running:
        try:
            yield running
        finally:
            gate.touch()


def _within(body: object) -> float:
    """Little time where the model is asked to be slow."""
    return SECONDS if str(SLOWLY) in str(body) else PATIENCE_SECONDS


def post(server: RunningServer, path: str, body: object) -> tuple[int, str | None, dict[str, object]]:
    """Status, the flag and the answer of a request that has little time."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_SECONDS)
    try:
        headers = {"x-request-timeout-ms": str(int(1000 * _within(body)))}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.getheader(FLAG), json.loads(response.read())
    finally:
        connection.close()


def predict(server: RunningServer, model: str, seconds: float) -> tuple[int, str | None, dict[str, object]]:
    return post(server, f"/v1/models/{model}:predict", {"instances": [seconds, 0.0]})


def infer(server: RunningServer, model: str, seconds: float) -> tuple[int, str | None, dict[str, object]]:
    given = {"name": "seconds", "datatype": "FP32", "shape": [2], "data": [seconds, 0.0]}
    return post(server, f"/v2/models/{model}/infer", {"inputs": [given]})


@pytest.mark.rest
def test_rest_answers_with_the_default_in_time_and_says_so(server: RunningServer) -> None:
    began = time.monotonic()
    assert predict(server, "values", SLOWLY) == (200, "default", {"predictions": [-1, -1]})
    assert time.monotonic() - began > SECONDS * 0.9  # not before; the model itself is held for good
    assert predict(server, "another", SLOWLY) == (200, "default fast/3", {"predictions": [7, 7]})
    status, flag, answer = infer(server, "values", SLOWLY)
    assert (status, flag) == (200, "default")
    assert answer["parameters"] == {"headrace_answered_by": "default"}
    assert answer["outputs"] == [{"name": "rows", "datatype": "INT64", "shape": [2], "data": [-1, -1]}]
    assert (answer["model_name"], answer["model_version"]) == ("values", "1")


def test_the_models_own_answers_are_not_flagged(server: RunningServer) -> None:
    assert predict(server, "values", 0.0) == (200, None, {"predictions": [2, 2]})
    status, flag, answer = infer(server, "patient", 0.0)
    assert (status, flag) == (200, None)
    assert "parameters" not in answer


def test_without_a_default_the_deadline_is_an_error(server: RunningServer) -> None:
    status, flag, answer = predict(server, "bare", SLOWLY)
    assert (status, flag) == (504, None)
    assert "deadline" in str(answer["error"])


def test_mistakes_are_answered_as_ever(server: RunningServer) -> None:
    status, flag, answer = predict(server, "failing", -1.0)
    assert (status, flag) == (500, None)
    assert "the model failed" in str(answer["error"])


def called(
    server: RunningServer, method: str, message: bytes, within: float = SECONDS
) -> tuple[bytes, dict[str, str]]:
    """The answer's bytes and the trailing metadata."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        answer, call = channel.unary_unary(method).with_call(
            message, timeout=PATIENCE_SECONDS, wait_for_ready=True
        )
        return answer, dict(call.trailing_metadata())


def infer_message(model: str, seconds: float, *, raw: bool) -> bytes:
    message = protos.message("inference.ModelInferRequest")(model_name=model)
    given = message.inputs.add(name="seconds", datatype="FP32", shape=[2])
    if raw:
        message.raw_input_contents.append(np.array([seconds, 0.0], np.float32).tobytes())
    else:
        given.contents.fp32_contents.extend([seconds, 0.0])
    written: bytes = message.SerializeToString()
    return written


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("model", "said", "rows"), [("soon", "default", -1), ("another", "default fast/3", 7)]
)
def test_model_infer_says_so_in_a_parameter_and_in_trailing_metadata(
    server: RunningServer, model: str, said: str, rows: int, *, raw: bool
) -> None:
    for _ in range(2):  # parsed, then recognised
        answer, trailing = called(
            server, "/inference.GRPCInferenceService/ModelInfer", infer_message(model, SLOWLY, raw=raw)
        )
        response = protos.message("inference.ModelInferResponse").FromString(answer)
        assert response.parameters["headrace_answered_by"].string_param == said
        assert trailing[FLAG] == said
        assert (response.model_name, response.model_version) == (model, "1")
        assert list(response.outputs[0].shape) == [2]
        found = (
            np.frombuffer(response.raw_output_contents[0], np.int64).tolist()
            if raw
            else list(response.outputs[0].contents.int64_contents)
        )
        assert found == [rows, rows]


def test_a_plain_model_infer_has_neither(server: RunningServer) -> None:
    answer, trailing = called(
        server,
        "/inference.GRPCInferenceService/ModelInfer",
        infer_message("values", 0.0, raw=True),
        PATIENCE_SECONDS,
    )
    response = protos.message("inference.ModelInferResponse").FromString(answer)
    assert not response.parameters
    assert FLAG not in trailing


def test_predict_says_so_in_trailing_metadata(server: RunningServer) -> None:
    message = protos.message("tensorflow.serving.PredictRequest")()
    message.model_spec.name = "soon"
    tensor = message.inputs["seconds"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=2)
    tensor.tensor_content = np.array([SLOWLY, 0.0], np.float32).tobytes()
    answer, trailing = called(
        server, "/tensorflow.serving.PredictionService/Predict", message.SerializeToString()
    )
    response = protos.message("tensorflow.serving.PredictResponse").FromString(answer)
    assert list(response.outputs["rows"].int64_val) == [-1, -1]
    assert trailing[FLAG] == "default"


def test_default_answers_are_counted(server: RunningServer) -> None:
    def count(name: str) -> float:
        text = server.get("/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    before = count('headrace_default_answers_total{model="values"')
    predict(server, "values", SLOWLY)
    assert count('headrace_default_answers_total{model="values"') == before + 1
    assert count('headrace_model_default_answers_total{model="values"') == before + 1


def test_a_default_that_does_not_fit_keeps_the_version_from_loading(tmp_path: Path) -> None:
    write(tmp_path, "good", 1, FAST)
    write(tmp_path, "wrong", 1, FAST, "[default]\nvalues = { lines = 3 }\n")
    with RunningServer(tmp_path, "--allow-code") as server:
        status, answer = server.post("/v1/models/wrong:predict", {"instances": [0.0]})
        assert status in {400, 503}
        assert "default.values: unknown output 'lines'; the model gives rows" in str(answer["error"])
        assert server.post("/v1/models/good:predict", {"instances": [0.0]}) == (200, {"predictions": [7]})
