"""Small matrix products: a few rows times weights laid out once, with bias and ReLU.

A BLAS library is general: it copies the weights into panels at every call, and needs separate passes over
memory for bias and ReLU. Here the weights are laid out when a model is loaded. A block of rows times a panel
of columns stays in registers from the first input to the last. The activations of a tile of rows stay in the
nearest cache from layer to layer.

Each element is summed in the order of the inputs, whatever its block. A row's result is therefore
bit-identical alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from headrace.base.tensors import Array
from headrace.jit.intrinsics import intrinsic
from headrace.jit.kernel_cache import kernel


def _shape_of_panels() -> tuple[int, int]:
    """Return the lanes of a vector and the vectors of a panel, such that six rows fit in the registers."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f", False):
        return 16, 4
    return (8, 2) if features.get("avx2", False) else (4, 2)


LANES, VECTORS = _shape_of_panels()
PANEL = LANES * VECTORS
"""Number of columns computed at once; weights are padded with zeros to a multiple."""


BLOCK_ROWS = 6
"""Number of rows computed at once."""


def padded(columns: int) -> int:
    """Return a number of columns rounded up to a multiple of ``PANEL``."""
    return -(-columns // PANEL) * PANEL


def pack(weights: Array) -> Array:
    """Lay out weights ``[inputs, columns]`` for ``multiply``: panel by panel, an input's columns adjacent.

    Returns:
        One-dimensional float32 array.
    """
    inputs, columns = weights.shape
    wide = np.zeros((inputs, padded(columns)), np.float32)
    wide[:, :columns] = weights
    panels = wide.reshape(inputs, padded(columns) // PANEL, PANEL).transpose(1, 0, 2)
    return np.ascontiguousarray(panels).reshape(-1)


def _make_block(rows: int) -> Any:
    """Create the product of a fixed number of rows with one panel: ``y = relu?(y + x @ panel)``."""

    @intrinsic
    def block(_typing: Any, x: Any, w: Any, y: Any, relu: Any) -> Any:
        return types.void(x, w, y, types.boolean), _generator(rows)

    return block


def _generator(rows: int) -> Callable[..., Any]:
    number = ir.FloatType()
    vector = ir.VectorType(number, LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x, x_stride), (w, inputs), (y, y_stride) = (
            _operand(context, builder, kind, operand)
            for kind, operand in zip(signature.args[:3], arguments[:3], strict=True)
        )
        relu, word = arguments[3], inputs.type
        x_rows = [builder.gep(x, [builder.mul(x_stride, ir.Constant(word, row))]) for row in range(rows)]
        y_places = [
            builder.bitcast(
                builder.gep(
                    y,
                    [
                        builder.add(
                            builder.mul(y_stride, ir.Constant(word, row)), ir.Constant(word, at * LANES)
                        )
                    ],
                ),
                vector.as_pointer(),
            )
            for row in range(rows)
            for at in range(VECTORS)
        ]
        sums = [builder.load(place, align=4) for place in y_places]
        sums = _loop(builder, (x_rows, w, inputs), sums, vector)
        zero = ir.Constant(vector, None)
        for place, total in zip(y_places, sums, strict=True):
            negative = builder.fcmp_ordered("<", total, zero)  # false for NaN, which must reach the output
            positive = builder.select(negative, zero, total)
            builder.store(builder.select(relu, positive, total), place, align=4)
        return context.get_dummy_value()

    return generate


def _operand(context: Any, builder: Any, kind: Any, operand: Any) -> tuple[Any, Any]:
    """Return a pointer to an operand's first element, and its stride."""
    array, start, stride = (builder.extract_value(operand, place) for place in range(3))
    data = context.make_array(kind.types[0])(context, builder, array).data
    return builder.gep(data, [start]), stride


def _loop(builder: Any, given: tuple[Any, Any, Any], sums: list[Any], vector: Any) -> list[Any]:
    """Generate the loop that adds the products of each input in turn, with the sums in registers."""
    x_rows, w, inputs = given
    word = inputs.type
    before = builder.block
    body, after = (builder.append_basic_block(name) for name in ("inputs", "done"))
    empty = builder.icmp_signed("<=", inputs, ir.Constant(word, 0))
    builder.cbranch(empty, after, body)
    builder.position_at_end(body)
    step = builder.phi(word)
    step.add_incoming(ir.Constant(word, 0), before)
    running = [builder.phi(vector) for _ in sums]
    for phi, first in zip(running, sums, strict=True):
        phi.add_incoming(first, before)
    panel = builder.gep(w, [builder.mul(step, ir.Constant(word, PANEL))])
    columns = [
        builder.load(
            builder.bitcast(builder.gep(panel, [ir.Constant(word, at * LANES)]), vector.as_pointer()), align=4
        )
        for at in range(VECTORS)
    ]
    insert: Any = cgutils.get_or_insert_function
    multiply_add = insert(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32")
    added = []
    for row, values in enumerate(x_rows):
        value = spread(builder, builder.load(builder.gep(values, [step])), vector)
        for at, weights in enumerate(columns):
            added.append(builder.call(multiply_add, [value, weights, running[row * VECTORS + at]]))
    following = builder.add(step, ir.Constant(word, 1))
    step.add_incoming(following, body)
    for phi, total in zip(running, added, strict=True):
        phi.add_incoming(total, body)
    builder.cbranch(builder.icmp_signed("<", following, inputs), body, after)
    builder.position_at_end(after)
    results = []
    for first, total in zip(sums, added, strict=True):
        result = builder.phi(vector)
        result.add_incoming(first, before)
        result.add_incoming(total, body)
        results.append(result)
    return results


def spread(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector filled with one value."""
    lane = ir.IntType(32)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(lane, 0))
    everywhere = ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), everywhere)


_six = _make_block(BLOCK_ROWS)
_three = _make_block(3)
_one = _make_block(1)


class Operand(NamedTuple):
    """A matrix in a one-dimensional array.

    Attributes:
        array: The float32 array.
        start: Index of the matrix's first element.
        stride: Distance from one row to the next; for packed weights, their number of inputs.
    """

    array: Array
    start: int
    stride: int


@kernel()
def multiply(x: Operand, w: Operand, y: Operand, columns: int, rows: int, relu: bool) -> None:
    """Add ``x @ w`` to ``y``, optionally followed by ReLU.

    Args:
        x: The inputs.
        w: The weights, laid out by ``pack``.
        y: The bias or partial sums; overwritten with the result.
        columns: Number of columns of the weights, a multiple of ``PANEL``.
        rows: Number of rows.
        relu: Whether to set negative results to zero.
    """
    for at in range(0, columns, PANEL):
        panel = Operand(w.array, w.start + at * w.stride, w.stride)
        row = 0
        while row < rows:
            inputs = Operand(x.array, x.start + row * x.stride, x.stride)
            results = Operand(y.array, y.start + row * y.stride + at, y.stride)
            if row + BLOCK_ROWS <= rows:
                _six(inputs, panel, results, relu)
                row += BLOCK_ROWS
            elif row + 3 <= rows:
                _three(inputs, panel, results, relu)
                row += 3
            else:
                _one(inputs, panel, results, relu)
                row += 1
