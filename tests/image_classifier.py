"""A small image classifier of real arithmetic, as an ONNX file: how dark and how bright a gray image is."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto, helper

from tests.model_directories import model

SIDE = 8
LABELS = ("dark", "bright")
SETTINGS = f"""
[image]
size = [{SIDE}, {SIDE}]
channels = "gray"
layout = "NHW"

[signature]
labels = ["dark", "bright"]
top = 1
"""


def brightness(
    shape: Sequence[int] = (SIDE, SIDE), dtype: int = TensorProto.FLOAT, *, weighted: bool = False
) -> bytes:
    """Gives ``probabilities`` of ``pixels`` from 0 to 1: of one class the mean, of the other the rest.

    Args:
        shape: Shape of an image.
        dtype: Dtype of the pixels.
        weighted: Whether the mean is multiplied by a second input, ``weight``.
    """
    value = helper.make_tensor_value_info
    axes = list(range(1, len(shape) + 1))
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["mean"], axes=axes, keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["bright"]),
        helper.make_node("Sub", ["one", "bright"], ["dark"]),
        helper.make_node("Concat", ["dark", "bright"], ["probabilities"], axis=1),
    ]
    constants = [
        helper.make_tensor("column", TensorProto.INT64, [2], [-1, 1]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    inputs = [value("pixels", dtype, ["rows", *shape])]
    if weighted:
        nodes.insert(2, helper.make_node("Mul", ["mean", "weight"], ["product"]))
        nodes[3].input[0] = "product"
        inputs.append(value("weight", TensorProto.FLOAT, ["rows"]))
    return model(nodes, inputs, [value("probabilities", TensorProto.FLOAT, ["rows", 2])], constants)
