"""The model of all benchmarks: `ctr`, a DeepFM of click prediction's size, written as ONNX from a seed."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"
MODELS = CACHE / "models"
"""A model directory with the one model `ctr` in one version."""

FIELDS = 26
DENSE = 13
BUCKETS = 1_000_000
FACTORS = 16
HIDDEN = (256, 128, 64)
PICTURE_BYTES = 224 * 224 * 3
"""The size of a picture as networks take it: 150 KB."""

WIDE = (2048, 1024, 512)
"""A network that costs thirty times as much."""


def model_directory() -> Path:
    """The model directory with `ctr` in version 1, written if it is not there yet."""
    model_file(MODELS / "ctr" / "1" / "model.onnx", seed=0)
    return MODELS


def wide_directory() -> Path:
    """The same with a wide network."""
    model_file(CACHE / "wide" / "ctr" / "1" / "model.onnx", seed=0, hidden=WIDE)
    return CACHE / "wide"


def picture_directory() -> Path:
    """A model directory whose `ctr` takes pictures and hardly computes: what remains is their way to it.

    Its inputs and outputs are `picture` UINT8 [n, PICTURE_BYTES] and `p` FP32 [n, 1], the first byte of each.
    """
    directory = CACHE / "picture"
    path = directory / "ctr" / "1" / "model.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True)
        nodes = [
            helper.make_node("Slice", ["picture", "zero", "one", "one"], ["first"]),
            helper.make_node("Cast", ["first"], ["p"], to=TensorProto.FLOAT),
        ]
        graph = helper.make_graph(
            nodes,
            "picture",
            [helper.make_tensor_value_info("picture", TensorProto.UINT8, ["n", PICTURE_BYTES])],
            [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 1])],
            [
                numpy_helper.from_array(np.array([value], np.int64), name)
                for name, value in (("zero", 0), ("one", 1))
            ],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path)
    return directory


def model_file(path: Path, seed: int, hidden: tuple[int, ...] = HIDDEN) -> Path:
    """Write one `ctr` with the weights of a seed, unless it is there.

    Args:
        path: Where to.
        seed: What the weights are drawn from: the same seed, the same file.
        hidden: The sizes of the network's layers.

    Returns:
        The path.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        onnx.save(ctr(seed, hidden), unfinished)
        unfinished.rename(path)
    return path


def ctr(seed: int, hidden: tuple[int, ...] = HIDDEN) -> onnx.ModelProto:
    """Build the model: one embedding table for all fields, a factorization machine, and a network beside it.

    Args:
        seed: What the weights are drawn from.
        hidden: The sizes of the network's layers.

    Returns:
        A checked model: `cat` INT32 [n, 26] and `dense` FP32 [n, 13] in, `p` FP32 [n, 1] out.
    """
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights = [
        numpy_helper.from_array(random.normal(0, 0.05, (BUCKETS, FACTORS)).astype(np.float32), "table"),
        numpy_helper.from_array(np.array([0, FIELDS * FACTORS], np.int64), "flat_shape"),
        numpy_helper.from_array(np.array([1], np.int64), "axis_1"),
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
    ]
    nodes.append(helper.make_node("Gather", ["table", "cat"], ["embedded"]))
    _network(nodes, weights, random, hidden)
    _factorization_machine(nodes)
    nodes.append(helper.make_node("Add", ["machine", "network"], ["logit"]))
    nodes.append(helper.make_node("Sigmoid", ["logit"], ["p"]))
    graph = helper.make_graph(
        nodes,
        "ctr",
        [
            helper.make_tensor_value_info("cat", TensorProto.INT32, ["n", FIELDS]),
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["n", DENSE]),
        ],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _network(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    random: np.random.Generator,
    hidden: tuple[int, ...],
) -> None:
    nodes.append(helper.make_node("Reshape", ["embedded", "flat_shape"], ["flat"]))
    nodes.append(helper.make_node("Concat", ["flat", "dense"], ["layer_0"], axis=1))
    sizes = (FIELDS * FACTORS + DENSE, *hidden, 1)
    for layer, (wide, narrow) in enumerate(pairwise(sizes)):
        matrix = random.normal(0, (2 / wide) ** 0.5, (wide, narrow)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"weight_{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(narrow, np.float32), f"bias_{layer}"))
        last = layer == len(hidden)
        product = "network" if last else f"product_{layer}"
        nodes.append(
            helper.make_node("Gemm", [f"layer_{layer}", f"weight_{layer}", f"bias_{layer}"], [product])
        )
        if not last:
            nodes.append(helper.make_node("Relu", [product], [f"layer_{layer + 1}"]))


def _factorization_machine(nodes: list[onnx.NodeProto]) -> None:
    # The products of all pairs of fields, summed, are half of (the sum squared minus the sum of squares).
    nodes += [
        helper.make_node("ReduceSum", ["embedded", "axis_1"], ["summed"], keepdims=0),
        helper.make_node("Mul", ["summed", "summed"], ["summed_squared"]),
        helper.make_node("Mul", ["embedded", "embedded"], ["squared"]),
        helper.make_node("ReduceSum", ["squared", "axis_1"], ["squared_summed"], keepdims=0),
        helper.make_node("Sub", ["summed_squared", "squared_summed"], ["difference"]),
        helper.make_node("ReduceSum", ["difference", "axis_1"], ["pairs"], keepdims=1),
        helper.make_node("Mul", ["pairs", "half"], ["machine"]),
    ]
