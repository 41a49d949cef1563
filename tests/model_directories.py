"""Writes directories of small models for tests with real servers: what they answer is easy to check."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

_OPSET = 17
_IR_VERSION = 8


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
) -> bytes:
    """Serialize an ONNX model."""
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return made.SerializeToString()


def affine(scale: float, offset: float, extra_bytes: int = 0) -> bytes:
    """y = scale * x + offset, one number a row; with dead weight if asked for, to see memory by."""
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, [1], [scale]),
        helper.make_tensor("offset", TensorProto.FLOAT, [1], [offset]),
    ]
    nodes = [helper.make_node("Mul", ["x", "scale"], ["scaled"])]
    if not extra_bytes:
        nodes.append(helper.make_node("Add", ["scaled", "offset"], ["y"]))
        return model(nodes, [_float("x")], [_float("y")], constants)
    size = extra_bytes // 4
    constants += [
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0]),
        helper.make_tensor("weight", TensorProto.FLOAT, [size], bytes(4 * size), raw=True),
    ]
    nodes += [  # Which element is looked up is known at run time only: so all of them are held.
        helper.make_node("Mul", ["x", "zero"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["weight", "index"], ["looked_up"]),
        helper.make_node("Add", ["scaled", "offset"], ["light"]),
        helper.make_node("Add", ["light", "looked_up"], ["y"]),
    ]
    return model(nodes, [_float("x")], [_float("y")], constants)


def pair() -> bytes:
    """Two inputs (a: three floats a row, b: an integer a row), two outputs (total, largest)."""
    nodes = [
        helper.make_node("ReduceSum", ["a", "axis"], ["sum_a"], keepdims=0),
        helper.make_node("Cast", ["b"], ["float_b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["sum_a", "float_b"], ["total"]),
        helper.make_node("ReduceMax", ["a"], ["largest"], axes=[1], keepdims=0),
    ]
    b = helper.make_tensor_value_info("b", TensorProto.INT64, ["rows"])
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    return model(nodes, [_float("a", 3), b], [_float("total"), _float("largest")], [axis])


def mean(values: int) -> bytes:
    """The mean of many numbers a row."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    return model(nodes, [_float("x", values)], [_float("y")], [])


def words() -> bytes:
    """Echoes strings."""
    text, echo = (
        helper.make_tensor_value_info(name, TensorProto.STRING, ["rows"]) for name in ("text", "echo")
    )
    return model([helper.make_node("Identity", ["text"], ["echo"])], [text], [echo], [])


def classifier() -> bytes:
    """Scores of three classes: x0, x1, and x0 + x1."""
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [2, 3], [1, 0, 1, 0, 1, 1])
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["scores"])]
    return model(nodes, [_float("x", 2)], [_float("scores", 3)], [weights])


SLOW = """
import time

class Model:
    inputs = [("seconds", "FP32", [])]
    outputs = [("rows", "INT64", [])]

    def predict(self, inputs):
        seconds = inputs["seconds"]
        if (seconds < 0).any():
            raise ValueError("seconds below zero")
        time.sleep(float(seconds.max()))
        return {"rows": [len(seconds)] * len(seconds)}
"""
"""Takes as long as the slowest row of a batch asks for, fails if one is below 0, answers the batch's rows."""


UNPROBED = "\n[warm_up]\nprobe = false\n"
"""The settings of models that tell how large their batch was, or that are not to be called by the server."""

_TELLS_ROWS = 'inputs = [("seconds", "FP32", [])]'


def write(directory: Path, name: str, version: int, content: bytes | str, settings: str = "") -> Path:
    """Write one version, under another name first: a server may be watching.

    Args:
        directory: The directory of models.
        name: The model.
        version: The version.
        content: An ONNX model, or the text of a ``model.py``.
        settings: The ``headrace.toml`` of the model; left as it is if empty; with ``UNPROBED`` for ``SLOW``.

    Returns:
        The version directory.
    """
    path = directory / name
    draft = path / f".draft-{version}"
    draft.mkdir(parents=True)
    if isinstance(content, bytes):
        (draft / "model.onnx").write_bytes(content)
    else:
        (draft / "model.py").write_text(content, "utf-8")
    if isinstance(content, str) and _TELLS_ROWS in content and "[warm_up]" not in settings:
        settings += UNPROBED
    if settings:
        (path / "headrace.toml").write_text(settings, "utf-8")
    return draft.rename(path / str(version))


def write_menagerie(directory: Path) -> None:
    """One model of each kind that clients ask about.

    One of them is code. ``half_plus_two`` has version 1 (label stable: x / 2 + 2) and version 2 (label
    canary: x / 2 + 3).
    """
    both = '[versions]\npolicy = "all"\nlabels = {stable = 1, canary = 2}\n'
    write(directory, "half_plus_two", 1, affine(0.5, 2.0), both)
    write(directory, "half_plus_two", 2, affine(0.5, 3.0))
    write(directory, "pair", 7, pair())
    write(directory, "words", 1, words())
    flowers = '[signature]\nkind = "classify"\nscores = "scores"\nlabels = ["rose", "tulip", "both"]\n'
    write(directory, "flowers", 1, classifier(), flowers)
    write(directory, "slow", 1, SLOW)
    write(directory, "price", 1, affine(10.0, 1.0), '[signature]\nkind = "regress"\nscores = "y"\n')


def _float(name: str, *row_shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *row_shape])
