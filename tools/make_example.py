"""Writes the example model's ONNX file into the package: ``python tools/make_example.py``. Needs ``onnx``.

The file is kept in the repository, so that `headrace example` works without `onnx`. Run this when it changes.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

TARGET = Path(__file__).resolve().parent.parent / "src/headrace/example/half_plus_two.onnx"
# Old enough for every ONNX Runtime that headrace allows.
OPSET, IR_VERSION = 17, 8


def build() -> onnx.ModelProto:
    """Build y = x / 2 + 2."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "half"], ["halved"]),
            helper.make_node("Add", ["halved", "two"], ["y"]),
        ],
        "half_plus_two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])],
        [
            helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        ],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, producer_name="headrace", opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    TARGET.write_bytes(build().SerializeToString(deterministic=True))
    print(f"wrote {TARGET.name}, {TARGET.stat().st_size} bytes")
