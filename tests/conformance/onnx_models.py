"""ONNX models for the conformance suite, made with the onnx package's helpers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.base.tensors import Array, Tensors
from tests.conformance.runtime_example import Example, RuntimeUnderTest

Axis = int | str | None
Value = tuple[str, int, list[Axis] | None]

_random = np.random.default_rng(7)
_WEIGHTS = _random.normal(size=(64, 10)).astype(np.float32)
_TABLE = _random.normal(size=(1000, 300)).astype(np.float32)
_FEATURES = _random.normal(size=(300, 64)).astype(np.float32)
_KEYS = _random.integers(0, 1000, (300, 3), dtype=np.int32)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: dict[str, Array] | None = None,
    *,
    opset: Sequence[onnx.OperatorSetIdProto] = (),
) -> onnx.ModelProto:
    """A model of these nodes."""
    graph = helper.make_graph(
        list(nodes),
        "example",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), *opset]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def save(model: onnx.ModelProto, directory: Path) -> None:
    """Write a version directory."""
    onnx.save(model, directory / "model.onnx")


def network(rows: Axis = "rows") -> onnx.ModelProto:
    """One layer and a softmax."""
    return build(
        [
            helper.make_node("MatMul", ["x", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["p"], axis=1),
        ],
        [("x", TensorProto.FLOAT, [rows, 64])],
        [("p", TensorProto.FLOAT, [rows, 10])],
        {"weights": _WEIGHTS},
    )


def lookup() -> onnx.ModelProto:
    """Several inputs and outputs: embeddings that are gathered and summed, a flag that is counted."""
    return build(
        [
            helper.make_node("Gather", ["table", "keys"], ["embeddings"]),
            helper.make_node("ReduceSum", ["embeddings", "axis"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["flag"], ["number"], to=TensorProto.INT64),
            helper.make_node("Add", ["number", "axis"], ["counted"]),
        ],
        [("keys", TensorProto.INT32, ["rows", 3]), ("flag", TensorProto.BOOL, ["rows"])],
        [("sum", TensorProto.FLOAT, ["rows", 300]), ("counted", TensorProto.INT64, ["rows"])],
        {"table": _TABLE, "axis": np.array([1], np.int64)},
    )


def strings() -> onnx.ModelProto:
    """Strings in, strings and numbers out."""
    return build(
        [
            helper.make_node("Identity", ["text"], ["same"]),
            helper.make_node(
                "LabelEncoder",
                ["text"],
                ["number"],
                domain="ai.onnx.ml",
                keys_strings=["red", "grün", ""],
                values_int64s=[1, 2, 3],
                default_int64=-1,
            ),
        ],
        [("text", TensorProto.STRING, ["rows", 2])],
        [("same", TensorProto.STRING, ["rows", 2]), ("number", TensorProto.INT64, ["rows", 2])],
        opset=[helper.make_opsetid("ai.onnx.ml", 2)],
    )


def variable() -> onnx.ModelProto:
    """Rows of any length."""
    return build(
        [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=0)],
        [("x", TensorProto.DOUBLE, ["rows", "length"])],
        [("mean", TensorProto.DOUBLE, ["rows"])],
    )


def _features(rows: int) -> Tensors:
    return {"x": _FEATURES[:rows]}


def _keys(rows: int) -> Tensors:
    return {"keys": _KEYS[:rows], "flag": np.arange(rows) % 3 == 0}


def _texts(rows: int) -> Tensors:
    words = [b"red", "grün".encode(), b"", b"a\0b"]
    return {"text": np.array([[words[i % 4], words[i % 3]] for i in range(rows)], dtype=object)}


ONNX = RuntimeUnderTest(
    kind="onnx",
    file="model.onnx",
    broken=(b"", b"not a model", network().SerializeToString()[:500]),
    examples=(
        Example(
            "network",
            lambda directory: save(network(), directory),
            _features,
            ("x FP32 [rows, 64]", "p FP32 [rows, 10]"),
        ),
        Example(
            "lookup",
            lambda directory: save(lookup(), directory),
            _keys,
            ("keys INT32 [rows, 3]", "flag BOOL [rows]", "sum FP32 [rows, 300]", "counted INT64 [rows]"),
        ),
        Example(
            "strings",
            lambda directory: save(strings(), directory),
            _texts,
            ("text BYTES [rows, 2]", "same BYTES [rows, 2]", "number INT64 [rows, 2]"),
        ),
        Example(
            "variable",
            lambda directory: save(variable(), directory),
            lambda rows: {"x": _FEATURES[:rows, :5].astype(np.float64)},
            ("x FP64 [rows, any]", "mean FP64 [rows]"),
        ),
        Example(
            "fixed",
            lambda directory: save(network(rows=4), directory),
            _features,
            ("x FP32 [rows, 64]", "p FP32 [rows, 10]"),
            rows=4,
        ),
    ),
    failing=Example(
        "lookup",
        lambda directory: save(lookup(), directory),
        lambda rows: {"keys": _KEYS[:rows] + 1000, "flag": np.zeros(rows, np.bool_)},
        (),
    ),
    large=Example("lookup", lambda directory: save(lookup(), directory), _keys, ()),
)
