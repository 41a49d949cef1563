"""What ``context_kernels`` is made of: one row's context, and what one candidate adds to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.kernels.compiling import kernel
from headrace.ctr.kernels.intrinsics import read, write
from headrace.ctr.settings import KINDS
from headrace.ctr.tables import Table
from headrace.tensors import Array

_LR, _FM, _FWFM, _FFM, _DEEPFM, _DEEPFFM = range(len(KINDS))
FLAGS = {"contract", "reassoc", "nsz", "arcp"}
"""What LLVM may assume of sums: their order is free, but not that nothing is NaN or infinite."""


class Sizes(NamedTuple):
    """The numbers that a model's kernels are called with.

    Attributes:
        kind: Its place in ``KINDS``.
        factors: As long as an embedding, for each other field where it is field-aware: as part of the type,
            so that kernels are compiled for it and their loops over it become a few vector operations.
        width: The numbers in an embedding, or of all that a row of a field-aware table has.
        stride: The numbers in a row of the table of embeddings: more where an optimizer has some there.
        linear_stride: The same of the linear table.
        fields: How many categorical fields.
        context_fields: How many of them are of the context.
        context_slots: How many slots those have.
        dense: How many dense columns.
        context_dense: How many of them are of the context.
        context_inputs: How many of the network's inputs depend on the context alone.
        candidate_inputs: How many others.
        state: How many numbers are kept of a group for its candidates.
    """

    kind: int
    factors: tuple[None, ...]
    width: int
    stride: int
    linear_stride: int
    fields: int
    context_fields: int
    context_slots: int
    dense: int
    context_dense: int
    context_inputs: int
    candidate_inputs: int
    state: int


class Rows(NamedTuple):
    """What is predicted.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
        crossed: Rows of the linear table that interactions add: uint32 ``[rows, interactions]``.
    """

    indices: Array
    dense: Array
    crossed: Array


class Places(NamedTuple):
    """Where something lies in the scratch array.

    Attributes:
        state: What a group's candidates need: the linear part with the pair terms among the context, the sum
            of squares (fm, deepfm), and what candidates are paired with.
        inputs: The network's inputs.
        pooled: Embeddings that are needed for one row only.
    """

    state: int
    inputs: int
    pooled: int


class Prepared(NamedTuple):
    """A model as kernels take it.

    Attributes:
        sizes: Its numbers.
        slot_starts: As in Features.
        mean_pooled: As in Features.
        linear: The table of linear weights.
        embeddings: The table of embeddings; for lr, the linear one again.
        weights: The bias, the weights of dense columns, those of field pairs, then the network: float32.
        layers: Where the network lies in ``weights``: int64 ``[layers + 1, 4]``, each with the start of its
            weights and of its bias, its inputs and its columns. The first layer is there twice, for the
            inputs of the context and for the others; the last row is the output's.
    """

    sizes: Sizes
    slot_starts: Array
    mean_pooled: Array
    linear: Table
    embeddings: Table
    weights: Array
    layers: Array


@kernel(fastmath=FLAGS, inline="always")
def dot(left: Array, left_start: int, right: Array, right_start: int, count: int) -> np.float32:
    """The dot product of two stretches of arrays."""
    total = np.float32(0)
    for at in range(count):
        total += read(left, left_start + at) * read(right, right_start + at)
    return np.float32(total)


@kernel(fastmath=FLAGS)
def _pooled_linear(prepared: Prepared, rows: Rows, row: int, first: int, last: int) -> np.float32:
    """The linear part of the fields ``first`` to ``last``."""
    values, scales, shift = prepared.linear
    total = np.float32(0)
    for field in range(first, last):
        start, stop = prepared.slot_starts[field], prepared.slot_starts[field + 1]
        part, count = np.float32(0), 0
        for slot in range(start, stop):
            index = np.int64(rows.indices[row, slot])
            if index != 0:
                weight = np.float32(read(values, index * prepared.sizes.linear_stride))
                part += weight * read(scales, index >> shift)
                count += 1
        total += part / np.float32(count) if prepared.mean_pooled[field] and count > 1 else part
    return np.float32(total)


@kernel(fastmath=FLAGS, inline="always")
def _pool_one(
    prepared: Prepared, rows: Rows, where: tuple[int, int], out: Array, at: int, width: int
) -> None:
    """Write the embedding of one row's field."""
    row, field = where
    values, scales, shift = prepared.embeddings
    stride = prepared.sizes.stride
    start, stop = prepared.slot_starts[field], prepared.slot_starts[field + 1]
    index = np.int64(rows.indices[row, start])
    scale = read(scales, index >> shift)
    for column in range(width):
        write(out, at + column, np.float32(read(values, index * stride + column)) * scale)
    if stop - start == 1:
        return
    count = 1 if index != 0 else 0
    for slot in range(start + 1, stop):
        index = np.int64(rows.indices[row, slot])
        if index == 0:
            continue
        scale = read(scales, index >> shift)
        for column in range(width):
            write(
                out,
                at + column,
                read(out, at + column) + np.float32(read(values, index * stride + column)) * scale,
            )
        count += 1
    if prepared.mean_pooled[field] and count > 1:
        part = np.float32(1) / np.float32(count)
        for column in range(width):
            write(out, at + column, read(out, at + column) * part)


@kernel(fastmath=FLAGS)
def _pool(prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], out: Array, at: int) -> None:
    """Write the embeddings of some fields, one after the other."""
    width, factors = prepared.sizes.width, len(prepared.sizes.factors)
    if width == factors:  # a loop of known length
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, rows, (row, field), out, at + (field - fields[0]) * factors, factors)
    else:
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, rows, (row, field), out, at + (field - fields[0]) * width, width)


@kernel(fastmath=FLAGS)
def _linear_and_dense(
    prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], columns: tuple[int, int]
) -> np.float32:
    total = _pooled_linear(prepared, rows, row, fields[0], fields[1])
    for column in range(columns[0], columns[1]):
        total += rows.dense[row, column] * read(prepared.weights, 1 + column)
    return np.float32(total)


@kernel()
def same_context(sizes: Sizes, rows: Rows, row: int) -> bool:
    """Whether a row's context is that of the row before; without an early end, so that it is vectorized."""
    indices, dense = rows.indices.reshape(-1), rows.dense.reshape(-1)
    at, before = row * rows.indices.shape[1], (row - 1) * rows.indices.shape[1]
    other = np.uint32(0)
    for slot in range(sizes.context_slots):
        other |= read(indices, at + slot) ^ read(indices, before + slot)
    at, before = row * rows.dense.shape[1], (row - 1) * rows.dense.shape[1]
    differences = 0
    for column in range(sizes.context_dense):
        differences += read(dense, at + column) != read(dense, before + column)
    return bool(other == 0 and differences == 0)


@kernel(fastmath=FLAGS, inline="always")
def _sum_squares(scratch: Array, at: int, fields: int, factors: int, sums: int) -> np.float32:
    """Add embeddings to their sums; returns the sum of their squares."""
    squares = np.float32(0)
    for field in range(fields):
        for factor in range(factors):
            value = read(scratch, at + field * factors + factor)
            write(scratch, sums + factor, read(scratch, sums + factor) + value)
            squares += value * value
    return squares


@kernel(fastmath=FLAGS)
def context(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> None:
    """Compute what a group has in common."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    kind, factors, of_context = sizes.kind, len(sizes.factors), sizes.context_fields
    total = read(prepared.weights, 0) + _linear_and_dense(
        prepared, rows, row, (0, of_context), (0, sizes.context_dense)
    )
    squares = np.float32(0)
    embeddings = inputs if kind == _DEEPFM else pooled
    if kind != _LR:
        _pool(prepared, rows, row, (0, of_context), scratch, embeddings)
        for place in range(state + 2, state + sizes.state):
            write(scratch, place, np.float32(0))
    at = inputs
    if kind in (_FM, _DEEPFM):
        squares = _sum_squares(scratch, embeddings, of_context, factors, state + 2)
        at += of_context * factors
    elif kind == _FWFM:
        total += _weighted_context(prepared, scratch, pooled, state + 2)
    elif kind != _LR:
        found, at = _field_aware_context(prepared, scratch, places)
        total += found
    if sizes.context_inputs > 0:
        for column in range(sizes.context_dense):
            write(scratch, at + column, rows.dense[row, column])
    write(scratch, state, total)
    write(scratch, state + 1, squares)


@kernel(fastmath=FLAGS)
def _field_aware_context(prepared: Prepared, scratch: Array, places: Places) -> tuple[np.float32, int]:
    """The pairs among the context; what candidates' fields are paired with goes to the state."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    factors, width, fields, of_context = len(sizes.factors), sizes.width, sizes.fields, sizes.context_fields
    total, at = np.float32(0), inputs
    for first in range(of_context):
        for second in range(first + 1, of_context):
            left, right = pooled + first * width + second * factors, pooled + second * width + first * factors
            found = dot(scratch, left, scratch, right, factors)
            total += found
            if sizes.kind == _DEEPFFM:
                write(scratch, at, found)
                at += 1
    to = state + 2
    for candidate in range(of_context, fields):
        for field in range(of_context):
            start = pooled + field * width + candidate * factors
            for factor in range(factors):
                write(scratch, to + factor, read(scratch, start + factor))
            to += factors
    return total, at


@kernel(fastmath=FLAGS)
def _weighted_context(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    """Fwfm's pairs among the context; each candidate field's weighted sum of the context goes to ``sums``."""
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    total = np.float32(0)
    for first in range(of_context):
        for second in range(first + 1, of_context):
            total += read(prepared.weights, pairs + first * fields + second) * dot(
                scratch, pooled + first * factors, scratch, pooled + second * factors, factors
            )
        for candidate in range(of_context, fields):
            weight = read(prepared.weights, pairs + first * fields + candidate)
            to = sums + (candidate - of_context) * factors
            for factor in range(factors):
                write(
                    scratch,
                    to + factor,
                    read(scratch, to + factor) + weight * read(scratch, pooled + first * factors + factor),
                )
    return np.float32(total)


@kernel(fastmath=FLAGS)
def candidate(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> np.float32:
    """Compute what a candidate adds: returns the logit but for the network, whose inputs are written."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    kind, factors, width, fields = sizes.kind, len(sizes.factors), sizes.width, sizes.fields
    of_context = sizes.context_fields
    of_candidate = fields - of_context
    total = read(scratch, state) + _linear_and_dense(
        prepared, rows, row, (of_context, fields), (sizes.context_dense, sizes.dense)
    )
    embeddings = inputs if kind == _DEEPFM else pooled
    if kind != _LR:
        _pool(prepared, rows, row, (of_context, fields), scratch, embeddings)
    at = inputs
    if kind in (_FM, _DEEPFM):
        sums = pooled + of_candidate * width
        for factor in range(factors):
            write(scratch, sums + factor, read(scratch, state + 2 + factor))
        squares = read(scratch, state + 1) + _sum_squares(scratch, embeddings, of_candidate, factors, sums)
        total += np.float32(0.5) * (dot(scratch, sums, scratch, sums, factors) - squares)
        at += of_candidate * factors
    elif kind == _FWFM:
        total += _weighted_candidate(prepared, scratch, pooled, state + 2)
    elif kind != _LR:
        found, at = _field_aware(prepared, scratch, pooled, state + 2, inputs)
        total += found
    if sizes.candidate_inputs > 0:
        for column in range(sizes.context_dense, sizes.dense):
            write(scratch, at + column - sizes.context_dense, rows.dense[row, column])
    return np.float32(total)


@kernel(fastmath=FLAGS)
def _weighted_candidate(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    total = np.float32(0)
    for first in range(fields - of_context):
        own = pooled + first * factors
        total += dot(scratch, own, scratch, sums + first * factors, factors)
        for second in range(first + 1, fields - of_context):
            weight = read(prepared.weights, pairs + (of_context + first) * fields + of_context + second)
            total += weight * dot(scratch, own, scratch, pooled + second * factors, factors)
    return np.float32(total)


@kernel(fastmath=FLAGS)
def _field_aware(
    prepared: Prepared, scratch: Array, pooled: int, state: int, inputs: int
) -> tuple[np.float32, int]:
    """The pairs with a candidate's fields, in order of (first, second); deepffm's become inputs."""
    sizes = prepared.sizes
    factors, width, fields, of_context = len(sizes.factors), sizes.width, sizes.fields, sizes.context_fields
    total, at = np.float32(0), inputs
    for first in range(fields):
        for second in range(max(first + 1, of_context), fields):
            own = pooled + (second - of_context) * width + first * factors
            if first < of_context:
                other = state + ((second - of_context) * of_context + first) * factors
            else:
                other = pooled + (first - of_context) * width + second * factors
            found = dot(scratch, own, scratch, other, factors)
            total += found
            if sizes.kind == _DEEPFFM:
                write(scratch, at, found)
                at += 1
    return total, at


@kernel(fastmath=FLAGS)
def crossed(prepared: Prepared, rows: Rows, row: int) -> np.float32:
    """The weights of a row's interactions."""
    values, scales, shift = prepared.linear
    total = np.float32(0)
    for column in range(rows.crossed.shape[1]):
        index = np.int64(rows.crossed[row, column])
        weight = np.float32(read(values, index * prepared.sizes.linear_stride))
        total += weight * read(scales, index >> shift)
    return np.float32(total)
