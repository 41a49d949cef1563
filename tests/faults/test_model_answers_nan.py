"""A model answers NaN or infinity: callers get it in the form that their protocol has for it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.faults.still_serves import does_it_still_serve, grpc_calls, infer
from tests.model_directories import model, write
from tests.running_server import RunningServer


def logarithm() -> bytes:
    """The natural logarithm: NaN below zero, and minus infinity of zero."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows"]) for name in ("x", "y"))
    return model([helper.make_node("Log", ["x"], ["y"])], [x], [y], [])


def test_it_is_passed_on_in_each_protocols_form(models: Path) -> None:
    write(models, "log", 1, logarithm(), '[signature]\nkind = "regress"\nscores = "y"\n')
    values = [1.0, -1.0, 0.0]
    with RunningServer(models) as server, grpc_calls(server) as call:
        status, answer = server.post("/v1/models/log:predict", {"instances": values})
        assert (status, str(answer["predictions"])) == (200, "[0.0, nan, -inf]"), "tokens as in requests"
        examples = [{"x": value} for value in values]
        status, answer = server.post("/v1/models/log:regress", {"examples": examples})
        assert (status, str(answer["results"])) == (200, "[0.0, nan, -inf]")

        x = {"name": "x", "datatype": "FP32", "shape": [3], "data": values}
        status, answer = server.post("/v2/models/log/infer", {"inputs": [x]})
        (output,) = answer["outputs"]  # type: ignore[misc]
        assert (status, output["data"]) == (200, [0.0, None, None]), "there JSON has no such numbers"
        binary = {"name": "y", "parameters": {"binary_data": True}}
        body = {"inputs": [x], "outputs": [binary]}
        status, content = server.request("POST", "/v2/models/log/infer", json.dumps(body).encode())
        assert status == 200
        np.testing.assert_array_equal(
            np.frombuffer(content[-12:], np.float32), np.array([0.0, math.nan, -math.inf], np.float32)
        )
        np.testing.assert_array_equal(infer(call, "log", *values), [0.0, math.nan, -math.inf])
        does_it_still_serve(server)
