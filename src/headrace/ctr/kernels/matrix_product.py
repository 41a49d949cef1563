"""Small matrix products: a few rows times weights laid out once, with bias and ReLU.

A library's product pays for any shape: it copies the weights into panels at every call, and a layer's bias
and ReLU are passes of their own over memory. Here the weights are laid out when a model is loaded, a block of
rows times a panel of columns stays in registers from the first input to the last, and the activations of a
tile of rows stay in the nearest cache from layer to layer.

Every element is one sum in the order of the inputs, whatever block it falls into: a row's answer is the same
to the bit alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from headrace.ctr.kernels.compiling import kernel
from headrace.ctr.kernels.intrinsics import intrinsic
from headrace.tensors import Array


def _shape_of_panels() -> tuple[int, int]:
    """Lanes of a vector, and vectors of a panel: with six rows, what fits this machine's registers."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f", False):
        return 16, 4
    return (8, 2) if features.get("avx2", False) else (4, 2)


LANES, VECTORS = _shape_of_panels()
PANEL = LANES * VECTORS
"""How many columns are computed at once; weights are padded with zeros to a multiple."""


BLOCK_ROWS = 6
"""How many rows are computed at once."""


def padded(columns: int) -> int:
    """The number of columns with the zeros behind them."""
    return -(-columns // PANEL) * PANEL


def pack(weights: Array) -> Array:
    """Lay out weights ``[inputs, columns]`` for ``multiply``: panel by panel, an input's columns together.

    Returns:
        float32, one dimension.
    """
    inputs, columns = weights.shape
    wide = np.zeros((inputs, padded(columns)), np.float32)
    wide[:, :columns] = weights
    panels = wide.reshape(inputs, padded(columns) // PANEL, PANEL).transpose(1, 0, 2)
    return np.ascontiguousarray(panels).reshape(-1)


def _make_block(rows: int) -> Any:
    """Make the product of so many rows with one panel: ``y = relu?(y + x @ panel)``."""

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
            negative = builder.fcmp_ordered("<", total, zero)  # not for NaN, which has to show
            positive = builder.select(negative, zero, total)
            builder.store(builder.select(relu, positive, total), place, align=4)
        return context.get_dummy_value()

    return generate


def _operand(context: Any, builder: Any, kind: Any, operand: Any) -> tuple[Any, Any]:
    """Where an operand's numbers begin, and its stride."""
    array, start, stride = (builder.extract_value(operand, place) for place in range(3))
    data = context.make_array(kind.types[0])(context, builder, array).data
    return builder.gep(data, [start]), stride


def _loop(builder: Any, given: tuple[Any, Any, Any], sums: list[Any], vector: Any) -> list[Any]:
    """Add the products of each input in turn; the sums are kept in registers."""
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
    """A vector whose every lane is a value."""
    lane = ir.IntType(32)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(lane, 0))
    everywhere = ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), everywhere)


_six = _make_block(BLOCK_ROWS)
_three = _make_block(3)
_one = _make_block(1)


class Operand(NamedTuple):
    """A matrix in an array of one dimension.

    Attributes:
        array: The array: float32.
        start: Where the matrix begins.
        stride: From one row to the next; for packed weights, how many inputs they have.
    """

    array: Array
    start: int
    stride: int


@kernel()
def multiply(x: Operand, w: Operand, y: Operand, columns: int, rows: int, relu: bool) -> None:
    """Add ``x @ w`` to ``y``, and cut off what is negative if wanted.

    Args:
        x: The inputs.
        w: The weights, as ``pack`` laid them out.
        y: The bias, or whatever the product is added to; becomes the result.
        columns: The columns of the weights, a multiple of ``PANEL``.
        rows: How many rows.
        relu: Whether to cut off what is negative.
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
