"""The kernels of ``first_layer``: numbering, small products over distinct values, sums over rows.

They use explicit vectors, as ``headrace.ctr.kernels.matrix_product`` does: a block of results stays in
registers until it is complete. All arrays are one-dimensional float32 unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from headrace.base.tensors import Array
from headrace.ctr.kernels.matrix_product import BLOCK_ROWS, LANES, PANEL, VECTORS, spread
from headrace.jit.intrinsics import intrinsic, one_by_one, read, write
from headrace.jit.kernel_cache import KERNEL, PART, cached

TALL = BLOCK_ROWS * VECTORS
"""Rows of a block that is one vector wide; each field's number of values is padded to a multiple of it."""

_SHORT = 4
"""Rows of a block of weight gradients; divides a field's padded number of inputs."""


class StridedMatrix(NamedTuple):
    """A matrix in an array.

    Attributes:
        array: The array.
        start: Index of the matrix's first element.
        by_row: Distance from one row to the next.
        by_step: Distance from one step of a sum to the next.
    """

    array: Array
    start: int
    by_row: int
    by_step: int


class Ids(NamedTuple):
    """A range of row numbers in a uint32 array.

    Attributes:
        array: The array.
        start: Index of the first number.
        length: Number of row numbers.
    """

    array: Array
    start: int
    length: int


class Found(NamedTuple):
    """The distinct values of all fields that have one value in each row.

    Attributes:
        values: Place of each distinct value's row among those that the batch touches: uint32
            ``[fields, rows]``.
        seen: Number last assigned to the value of each place, uninitialised at first: uint32 ``[touched]``.
        counts: Number of distinct values of each field: int64 ``[fields]``.
    """

    values: Array
    seen: Array
    counts: Array


class DistinctValues(NamedTuple):
    """The distinct values of a batch, field by field, and the rows that have them.

    Attributes:
        fields: Numbers of the chosen fields: int64 ``[chosen]``.
        bases: Number of each field's first value, then the end of the numbers: int64 ``[chosen + 1]``,
            multiples of ``TALL``.
        counts: Number of distinct values of each field: int64 ``[chosen]``.
        ids: Numbers of each row's values: uint32 ``[rows * chosen]``.
        order: Rows of each field, grouped by value: uint32 ``[chosen * rows]``.
        edges: Start and end of each value's rows in a field's part of ``order``: for value ``i`` at
            ``i + field`` and the next index, where ``field`` is the position among the chosen fields: int64
            ``[numbers + chosen]``.
        places: Number of each value's row among those that the batch touches: uint32 ``[numbers]``.
    """

    fields: Array
    bases: Array
    counts: Array
    ids: Array
    order: Array
    edges: Array
    places: Array


class Memory(NamedTuple):
    """Working memory of the kernels.

    Attributes:
        embeddings: Embeddings of the values ``[numbers * inputs]``, zero for unused numbers.
        towards: Gradients with respect to the embeddings, of the same shape.
        weights: Weights of the first layer ``[fields * factors * units]``, units padded to panels.
        turned: The weights, transposed for the gradients: ``[fields * units * inputs]``.
        gradients: Gradients of the weights: ``[fields * inputs * units]``.
        bias: Biases of the first layer ``[units]``.
        zeros: A panel of zeros.
    """

    embeddings: Array
    towards: Array
    weights: Array
    turned: Array
    gradients: Array
    bias: Array
    zeros: Array


class Sizes(NamedTuple):
    """Lengths of dimensions.

    Attributes:
        rows: Rows of the batch.
        factors: Inputs of the network per field.
        inputs: Inputs of the network per field, padded to vectors.
        units: Units of the first layer, padded to panels.
        stride: Distance from one row of activations to the next.
    """

    rows: int
    factors: int
    inputs: int
    units: int
    stride: int


@cached(**KERNEL)
def number(places, slots, found, given, most):  # type: ignore[no-untyped-def]
    """Number the distinct values of each field in order of occurrence.

    Args:
        places: Place of each value's row among those that the batch touches: uint32 ``[rows, slots]``.
        slots: Slot of each field: int64 ``[fields]``.
        found: Output for the distinct values.
        given: Output for the number of each row's value: uint32 ``[fields, rows]``.
        most: Most distinct values; a field with more is abandoned, with a count of ``most + 1``.
    """
    values, seen, counts = found.values, found.seen, found.counts
    for field in range(slots.shape[0]):
        count, slot, row = 0, read(slots, field), 0
        while row < places.shape[0] and count <= most:
            place = read(places, (row, slot))
            value = read(seen, np.uintp(place))
            if np.intp(value) >= count or read(values, (field, np.uintp(value))) != place:
                value = np.uint32(count)
                write(seen, np.uintp(place), value)
                write(values, (field, count), place)
                count += 1
            write(given, (field, row), value)
            row += 1
        write(counts, field, count)


@cached(**KERNEL)
def arrange(plan, found, given, columns):  # type: ignore[no-untyped-def]
    """Fill in a plan, except its fields, bases and counts, by a counting sort of each field's rows.

    Args:
        plan: The plan.
        found: Distinct values of each field.
        given: Number of each row's value: uint32 ``[fields, rows]``.
        columns: Indices of the chosen fields in ``given``: int64 ``[chosen]``.
    """
    chosen, rows = plan.fields.shape[0], given.shape[1]
    for at in range(chosen):
        column, base = np.intp(read(columns, at)), np.intp(read(plan.bases, at))
        first, last = base + at, np.intp(read(plan.bases, at + 1)) + at
        for each in range(read(plan.counts, at)):
            write(plan.places, base + each, read(found.values, (column, each)))
        for edge in range(first, last + 1):
            write(plan.edges, edge, 0)
        for row in range(rows):
            value = np.intp(read(given, (column, row)))
            write(plan.ids, row * chosen + at, np.uint32(base + value))
            write(plan.edges, first + value, read(plan.edges, first + value) + 1)
        total = 0
        for edge in range(first, last + 1):
            total += read(plan.edges, edge)
            write(plan.edges, edge, total)
        for row in range(rows - 1, -1, -1):
            value = np.intp(read(given, (column, row)))
            place = read(plan.edges, first + value) - 1
            write(plan.edges, first + value, place)
            write(plan.order, at * rows + place, np.uint32(row))


@cached(**KERNEL)
def fetch(plan, touched, table, memory, sizes):  # type: ignore[no-untyped-def]
    """Copy the embeddings of all distinct values to contiguous memory.

    Args:
        plan: The plan.
        touched: Rows that the batch touches: uint32 ``[touched]``.
        table: Table of embeddings: ``[rows, at least factors]``.
        memory: Working memory; ``embeddings`` is written.
        sizes: Lengths of dimensions.
    """
    for at in range(plan.fields.shape[0]):
        base, count = read(plan.bases, at), read(plan.counts, at)
        for value in range(base, base + count):
            one_by_one()
            row = np.uintp(read(touched, np.uintp(read(plan.places, value))))
            for column in range(sizes.factors):
                write(memory.embeddings, value * sizes.inputs + column, read(table, (row, column)))
        for place in range((base + count) * sizes.inputs, read(plan.bases, at + 1) * sizes.inputs):
            write(memory.embeddings, place, np.float32(0))


@cached(**KERNEL)
def lay_out(weights, memory, sizes, inputs):  # type: ignore[no-untyped-def]
    """Lay out the first layer's weights ``[inputs, units]`` for its products.

    Args:
        weights: The weights.
        memory: Working memory; ``weights`` and ``turned`` are written.
        sizes: Lengths of dimensions.
        inputs: Number of the first layer's inputs that belong to fields.
    """
    for place in range(inputs):
        field, factor = place // sizes.factors, place % sizes.factors
        for unit in range(weights.shape[1]):
            weight = read(weights, (place, unit))
            write(memory.weights, place * sizes.units + unit, weight)
            write(memory.turned, (field * sizes.units + unit) * sizes.inputs + factor, weight)


@cached(**KERNEL)
def add_embeddings(plan, memory, sizes, sums, edges):  # type: ignore[no-untyped-def]
    """Add the gradients of distinct values to those of the table's rows ``[touched, factors]``."""
    for at in range(edges[0], edges[1]):
        base = read(plan.bases, at)
        for value in range(base, base + read(plan.counts, at)):
            one_by_one()
            place = np.uintp(read(plan.places, value))
            for column in range(sizes.factors):
                gradient = read(memory.towards, value * sizes.inputs + column)
                write(sums, (place, column), read(sums, (place, column)) + gradient)


@cached(**KERNEL)
def forward(plan, memory, sizes, products, active, edges):  # type: ignore[no-untyped-def]
    """Compute the sums of some panels of the first layer's units: the bias and the products of all values.

    Args:
        plan: The plan.
        memory: Working memory.
        sizes: Lengths of dimensions.
        products: Scratch memory for a panel of the products of all values: ``[numbers * PANEL]``.
        active: Output for the sums: ``[rows * stride]``.
        edges: First panel, and the one after the last.
    """
    chosen = plan.fields.shape[0]
    for panel in range(edges[0], edges[1]):
        column = panel * PANEL
        for at in range(chosen):
            _multiply(plan, memory, sizes, products, (at, column))
        for row in range(sizes.rows):
            _sum_up(
                StridedMatrix(products, 0, PANEL, 0),
                Ids(plan.ids, row * chosen, chosen),
                StridedMatrix(memory.bias, column, 0, 0),
                StridedMatrix(active, row * sizes.stride + column, 0, 0),
            )


@numba.njit(**PART)
def _multiply(plan, memory, sizes, products, which):  # type: ignore[no-untyped-def]
    at, column = which
    start = read(plan.fields, at) * sizes.factors * sizes.units + column
    for value in range(read(plan.bases, at), read(plan.bases, at + 1), BLOCK_ROWS):
        _wide(
            StridedMatrix(memory.embeddings, value * sizes.inputs, sizes.inputs, 1),
            StridedMatrix(memory.weights, start, 0, sizes.units),
            StridedMatrix(products, value * PANEL, PANEL, 0),
            sizes.factors,
            True,
        )


@cached(**KERNEL)
def backward(plan, memory, sizes, sums, towards, edges):  # type: ignore[no-untyped-def]
    """Compute the gradients of some fields' values and weights.

    Args:
        plan: The plan.
        memory: Working memory; ``gradients`` and ``towards`` are written.
        sizes: Lengths of dimensions.
        sums: Scratch memory for a panel of the sums over rows of one field's values.
        towards: Gradients with respect to the first layer's sums: ``[rows * stride]``.
        edges: First of the chosen fields, and the one after the last.
    """
    for panel in range(sizes.units // PANEL):
        for at in range(edges[0], edges[1]):
            base, numbers = read(plan.bases, at), read(plan.bases, at + 1) - read(plan.bases, at)
            source = StridedMatrix(towards, panel * PANEL, sizes.stride, 0)
            for value in range(numbers):
                start = read(plan.edges, base + at + value)
                count = read(plan.edges, base + at + value + 1) - start
                ids = Ids(plan.order, at * sizes.rows + start, count)
                _sum_up(
                    source,
                    ids,
                    StridedMatrix(memory.zeros, 0, 0, 0),
                    StridedMatrix(sums, value * PANEL, 0, 0),
                )
            _weights_of(plan, memory, sizes, sums, (at, panel))
            _values_of(plan, memory, sizes, sums, (at, panel))


@numba.njit(**PART)
def _weights_of(plan, memory, sizes, sums, which):  # type: ignore[no-untyped-def]
    at, panel = which
    base = read(plan.bases, at)
    start = read(plan.fields, at) * sizes.inputs * sizes.units + panel * PANEL
    for factor in range(0, sizes.factors, _SHORT):
        _short(
            StridedMatrix(memory.embeddings, base * sizes.inputs + factor, 1, sizes.inputs),
            StridedMatrix(sums, 0, 0, PANEL),
            StridedMatrix(memory.gradients, start + factor * sizes.units, sizes.units, 0),
            read(plan.bases, at + 1) - base,
            True,
        )


@numba.njit(**PART)
def _values_of(plan, memory, sizes, sums, which):  # type: ignore[no-untyped-def]
    at, panel = which
    base = read(plan.bases, at)
    start = (read(plan.fields, at) * sizes.units + panel * PANEL) * sizes.inputs
    for value in range(0, read(plan.bases, at + 1) - base, TALL):
        for factor in range(0, sizes.inputs, LANES):
            _tall(
                StridedMatrix(sums, value * PANEL, PANEL, 1),
                StridedMatrix(memory.turned, start + factor, 0, sizes.inputs),
                StridedMatrix(memory.towards, (base + value) * sizes.inputs + factor, sizes.inputs, 0),
                PANEL,
                panel == 0,
            )


def _block(rows: int, vectors: int) -> Any:
    """Create the product of a block of fixed size: ``y = x @ w``, or added to ``y``."""

    @intrinsic
    def block(_typing: Any, x: Any, w: Any, y: Any, steps: Any, fresh: Any) -> Any:
        return types.void(x, w, y, types.intp, types.boolean), _product(rows, vectors)

    return block


def _product(rows: int, vectors: int) -> Callable[..., Any]:
    number, word = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(number, LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x, x_row, x_step), (w, _, w_step), (y, y_row, _) = (
            _strided(context, builder, kind, given)
            for kind, given in zip(signature.args[:3], arguments[:3], strict=True)
        )
        steps, fresh = arguments[3], arguments[4]
        x_rows = [builder.gep(x, [builder.mul(x_row, ir.Constant(word, row))]) for row in range(rows)]
        y_places = [
            place
            for row in range(rows)
            for place in _vectors(builder, builder.gep(y, [builder.mul(y_row, word(row))]), vectors)
        ]
        insert: Any = cgutils.get_or_insert_function
        multiply_add = insert(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        sums = [_register(builder, vector) for _ in y_places]
        with builder.if_else(fresh) as (then, otherwise):
            with then:
                for one in sums:
                    builder.store(vector(None), one)
            with otherwise:
                for one, place in zip(sums, y_places, strict=True):
                    builder.store(builder.load(place, align=4), one)
        with cgutils.for_range(builder, steps, intp=word) as loop:
            at = builder.mul(loop.index, w_step)
            columns = [
                builder.load(place, align=4) for place in _vectors(builder, builder.gep(w, [at]), vectors)
            ]
            offset = builder.mul(loop.index, x_step)
            for row, start in enumerate(x_rows):
                value = spread(builder, builder.load(builder.gep(start, [offset])), vector)
                for each, column in enumerate(columns):
                    one = sums[row * vectors + each]
                    builder.store(builder.call(multiply_add, [value, column, builder.load(one)]), one)
        for one, place in zip(sums, y_places, strict=True):
            builder.store(builder.load(one), place, align=4)
        return context.get_dummy_value()

    return generate


def _strided(context: Any, builder: Any, kind: Any, given: Any) -> tuple[Any, Any, Any]:
    array, start, by_row, by_step = (builder.extract_value(given, place) for place in range(4))
    data = context.make_array(kind.types[0])(context, builder, array).data
    return builder.gep(data, [start]), by_row, by_step


def _register(builder: Any, vector: Any) -> Any:
    """Allocate a local variable, which LLVM keeps in a register."""
    allocate: Any = cgutils.alloca_once
    return allocate(builder, vector)


def _vectors(builder: Any, start: Any, count: int) -> list[Any]:
    """Return pointers to ``count`` adjacent vectors."""
    word, kind = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES).as_pointer()
    return [builder.bitcast(builder.gep(start, [word(at * LANES)]), kind) for at in range(count)]


@intrinsic
def _sum_up(_typing: Any, source: Any, ids: Any, before: Any, result: Any) -> Any:
    """Set a panel of ``result`` to that of ``before`` plus those of ``source`` in all rows ``ids``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
        (data, stride, _), (first, _, _), (last, _, _) = (
            _strided(context, builder, signature.args[at], arguments[at]) for at in (0, 2, 3)
        )
        array, start, count = (builder.extract_value(arguments[1], place) for place in range(3))
        numbers = context.make_array(signature.args[1].types[0])(context, builder, array).data
        numbers = builder.gep(numbers, [start])
        sums = [_register(builder, vector) for _ in range(VECTORS)]
        for one, place in zip(sums, _vectors(builder, first, VECTORS), strict=True):
            builder.store(builder.load(place, align=4), one)
        with cgutils.for_range(builder, count, intp=word) as loop:
            row = builder.zext(builder.load(builder.gep(numbers, [loop.index])), word)
            begin = builder.gep(data, [builder.mul(row, stride)])
            for one, place in zip(sums, _vectors(builder, begin, VECTORS), strict=True):
                builder.store(builder.fadd(builder.load(one), builder.load(place, align=4)), one)
        for one, place in zip(sums, _vectors(builder, last, VECTORS), strict=True):
            builder.store(builder.load(one), place, align=4)
        return context.get_dummy_value()

    return types.void(source, ids, before, result), generate


_wide = _block(BLOCK_ROWS, VECTORS)
_short = _block(_SHORT, VECTORS)
_tall = _block(TALL, 1)
