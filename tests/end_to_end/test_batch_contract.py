"""Models whose rows depend on each other, or whose first axis is not rows: refused, or served whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from headrace.base.tensors import Array
from headrace.frontends.wire import protos
from tests.model_directories import affine, model, write
from tests.running_server import RunningServer

HIDDEN, WIDTH = 3, 2
WHOLE = "batching = false\n"


def number(name: str, values: Array) -> TensorProto:
    kind = TensorProto.INT64 if values.dtype == np.int64 else TensorProto.FLOAT
    return helper.make_tensor(name, kind, values.shape, values.ravel().tolist())


def value(name: str, *shape: int | str) -> object:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def lstm() -> bytes:
    """As PyTorch exports it: time is the first axis."""
    random = np.random.default_rng(0)
    gates = [random.normal(size=(1, 4 * HIDDEN, one)).astype(np.float32) for one in (WIDTH, HIDDEN)]
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["wide"], hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["wide", "one"], ["y"]),
    ]
    constants = [number("w", gates[0]), number("r", gates[1]), number("one", np.array([1]))]
    return model(nodes, [value("x", "time", 1, WIDTH)], [value("y", "time", 1, HIDDEN)], constants)  # type: ignore[list-item]


def softmax() -> bytes:
    """Over the rows, as PyTorch's softmax without a dimension."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    return model([node], [value("x", "rows", WIDTH)], [value("y", "rows", WIDTH)], [])  # type: ignore[list-item]


def targets() -> bytes:
    """Probabilities of two targets, ``[targets, rows, classes]``."""
    nodes, constants = [], [number("zero", np.array([0]))]
    for target, weights in enumerate(
        ([[1.0, 0.0, -1.0], [0.5, 1.0, 2.0]], [[3.0, 1.0, 0.0], [0.0, -2.0, 1.0]])
    ):
        constants.append(number(f"w{target}", np.array(weights, np.float32)))
        nodes += [
            helper.make_node("MatMul", ["x", f"w{target}"], [f"s{target}"]),
            helper.make_node("Softmax", [f"s{target}"], [f"p{target}"], axis=1),
            helper.make_node("Unsqueeze", [f"p{target}", "zero"], [f"q{target}"]),
        ]
    nodes.append(helper.make_node("Concat", ["q0", "q1"], ["y"], axis=0))
    return model(nodes, [value("x", "rows", WIDTH)], [value("y", "targets", "rows", 3)], constants)  # type: ignore[list-item]


MODELS = {"lstm": lstm(), "softmax": softmax(), "targets": targets()}
SHAPES = {"lstm": (5, 1, WIDTH), "softmax": (5, WIDTH), "targets": (5, WIDTH)}


def right(name: str, x: Array) -> Array:
    session = onnxruntime.InferenceSession(MODELS[name], providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def problem(server: RunningServer, name: str, version: int = 1) -> tuple[str, str]:
    """The state of a version, and why it is not served."""
    told = json.loads(server.get(f"/v1/models/{name}")[1])["model_version_status"]
    found = (one for one in told if one["version"] == str(version))
    status = next(found, {"state": "", "status": {"error_message": ""}})
    return status["state"], status["status"]["error_message"]


def test_models_that_would_mix_up_their_callers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "good", 1, affine(1.0, 1.0))
    for name, content in MODELS.items():
        write(tmp_path, name, 1, content)
    with RunningServer(tmp_path) as server:
        for name in ("lstm", "softmax"):
            state, why = problem(server, name)
            assert (state, "depend on each other" in why, "batching = false" in why) == ("END", True, True), (
                why
            )
        state, why = problem(server, "targets")
        assert (state, "with 2 in the output 'y'" in why, "batching = false" in why) == ("END", True, True), (
            why
        )
        assert server.post("/v1/models/good:predict", {"instances": [1.0]})[0] == 200


@pytest.mark.parametrize("isolated", ["", "isolate = true\n"])
def test_without_batching_each_request_is_answered_whole(tmp_path: Path, isolated: str) -> None:
    for name, content in MODELS.items():
        write(tmp_path, name, 1, content, WHOLE + isolated)
    with RunningServer(tmp_path) as server, ThreadPoolExecutor(6) as callers:

        def ask(call: int) -> None:
            name = sorted(MODELS)[call % len(MODELS)]
            rows, *shape = SHAPES[name]
            x = np.random.default_rng(call).normal(size=(rows + call % 3, *shape)).astype(np.float32)
            wanted = right(name, x)
            status, answer = server.post(f"/v1/models/{name}:predict", {"inputs": x.tolist()})
            assert status == 200, answer
            assert np.allclose(answer["outputs"], wanted, atol=1e-5)
            tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
            status, answer = server.post(f"/v2/models/{name}/infer", {"inputs": [tensor]})
            assert (status, answer["outputs"][0]["shape"]) == (200, list(wanted.shape))
            assert np.allclose(answer["outputs"][0]["data"], wanted.ravel(), atol=1e-5)

        list(callers.map(ask, range(60)))
        for name, shape in SHAPES.items():
            status, answer = server.post(
                f"/v1/models/{name}:predict", {"instances": np.zeros(shape).tolist()}
            )
            assert (status, 'columns as "inputs"' in str(answer["error"])) == (400, True)


def test_without_batching_grpc_answers_whole(tmp_path: Path) -> None:
    write(tmp_path, "targets", 1, MODELS["targets"], WHOLE)
    x = np.arange(10.0, dtype=np.float32).reshape(5, 2)
    wanted = right("targets", x)
    with (
        RunningServer(tmp_path) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        request = protos.message("inference.ModelInferRequest")(model_name="targets")
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer = protos.message("inference.ModelInferResponse")
        for _ in range(2):  # the second one is recognised
            answer = infer.FromString(call(request.SerializeToString(), timeout=30))
            assert list(answer.outputs[0].shape) == list(wanted.shape)
            given = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(wanted.shape)
            assert np.allclose(given, wanted, atol=1e-5)
        predict = protos.message("tensorflow.serving.PredictRequest")()
        predict.model_spec.name = "targets"
        predict.inputs["x"].dtype = 1
        for size in x.shape:
            predict.inputs["x"].tensor_shape.dim.add(size=size)
        predict.inputs["x"].tensor_content = x.tobytes()
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        response = protos.message("tensorflow.serving.PredictResponse")
        tensor = response.FromString(call(predict.SerializeToString(), timeout=30)).outputs["y"]
        assert [one.size for one in tensor.tensor_shape.dim] == list(wanted.shape)
        assert np.allclose(np.array(tensor.float_val).reshape(wanted.shape), wanted, atol=1e-5)


BROKEN = """
class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]
    def predict(self, inputs):
        return {"y": inputs["X"]}
"""


@pytest.mark.parametrize("must_answer", [True, False])
def test_a_version_that_fails_every_request_does_not_replace_one_that_answers(
    tmp_path: Path, must_answer: bool
) -> None:
    settings = f"[warm_up]\nmust_answer = {str(must_answer).lower()}\n"
    write(tmp_path, "m", 1, affine(2.0, 0.0), settings)
    with RunningServer(tmp_path, "--allow-code") as server:
        assert server.post("/v1/models/m:predict", {"instances": [1.0]}) == (200, {"predictions": [2.0]})
        draft = tmp_path / "m" / ".2"
        draft.mkdir()
        (draft / "model.py").write_text(BROKEN)
        draft.rename(tmp_path / "m" / "2")
        if must_answer:
            refusal = "fails every generated request"
            server.wait_for(lambda: refusal in problem(server, "m", 2)[1], "the refusal")
            server.wait_for(lambda: server.count_in_log(refusal) > 0, "the refusal in the log")
            answer = server.post("/v1/models/m:predict", {"instances": [1.0]})
            assert answer == (200, {"predictions": [2.0]})
        else:
            server.wait_for(lambda: problem(server, "m", 2)[0] == "AVAILABLE", "the new version")
            said = "every generated request failed"
            server.wait_for(lambda: server.count_in_log(said) > 0, "a word in the log")
