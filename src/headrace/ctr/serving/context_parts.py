"""What ``context_kernels`` is made of: one row's context, and what one candidate adds to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.kernels.compiling import part
from headrace.ctr.kernels.intrinsics import read, write
from headrace.ctr.kernels.vectors import (
    Vector,
    is_float,
    load,
    minus,
    plus,
    store,
    times,
    times_plus,
    total,
    zeros,
)
from headrace.ctr.settings import Kind
from headrace.ctr.tables import Table
from headrace.tensors import Array

PLACES: tuple[Kind, ...] = ("lr", "fm", "fwfm", "ffm", "deepfm", "deepffm")
"""The kinds in the order of their numbers in kernels."""

_LR, _FM, _FWFM, _FFM, _DEEPFM, _DEEPFFM = range(len(PLACES))
FLAGS = {"contract", "reassoc", "nsz", "arcp"}
"""What LLVM may assume of sums: their order is free, but not that nothing is NaN or infinite."""


class Sizes(NamedTuple):
    """The numbers that a model's kernels are called with.

    Attributes:
        kind: Its place in ``PLACES``; a kind with the same sums as another has that one's.
        factors: As long as an embedding, for each other field where it is field-aware: as part of the type,
            so that kernels are compiled for it and their loops over it become a few vector operations.
        lanes: As long as the part of an embedding that is read at once: the whole, unless that is very long.
        width: The numbers in an embedding, or of all that a row of a field-aware table has.
        stride: The numbers in a row of the table of embeddings: more where an optimizer has some there.
        linear_stride: The same of the linear table.
        single: 1 if every field has one slot, otherwise 0.
        fields: How many categorical fields.
        context_fields: How many of them are of the context.
        context_slots: How many slots those have.
        dense: How many dense columns.
        context_dense: How many of them are of the context.
        context_inputs: How many of the network's inputs depend on the context alone.
        candidate_inputs: How many others.
        state: How many numbers are kept of a group for its candidates.
        heads: How many numbers there are of each row in the end: the logit, and what a mixture needs besides.
    """

    kind: int
    factors: tuple[None, ...]
    lanes: tuple[None, ...]
    width: int
    stride: int
    linear_stride: int
    single: int
    fields: int
    context_fields: int
    context_slots: int
    dense: int
    context_dense: int
    context_inputs: int
    candidate_inputs: int
    state: int
    heads: int


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
        state: What a group's candidates need: the linear part with the pair terms among the context, then
            what candidates are paired with (fm, deepfm: the sums, and the sums of squares, by factor).
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


@part(fastmath=FLAGS, inline="always")
def dot(left: Array, left_start: int, right: Array, right_start: int, count: int) -> np.float32:
    """The dot product of two stretches of arrays."""
    found = np.float32(0)
    for at in range(count):
        found += read(left, left_start + at) * read(right, right_start + at)
    return np.float32(found)


@part(fastmath=FLAGS, inline="always")
def _linear_weight(prepared: Prepared, index: int) -> np.float32:
    values, scales, shift = prepared.linear
    weight = np.float32(read(values, index * prepared.sizes.linear_stride))
    return weight if is_float(values) else weight * read(scales, index >> shift)


@part(fastmath=FLAGS)
def _pooled_linear(prepared: Prepared, rows: Rows, row: int, first: int, last: int) -> np.float32:
    """The linear part of the fields ``first`` to ``last``; row 0 of a table, no value, is zero."""
    found = np.float32(0)
    if prepared.sizes.single:
        for slot in range(first, last):
            found += _linear_weight(prepared, np.int64(read(rows.indices, (row, slot))))
        return np.float32(found)
    for field in range(first, last):
        start, stop = read(prepared.slot_starts, field), read(prepared.slot_starts, field + 1)
        part, count = np.float32(0), 0
        for slot in range(start, stop):
            index = np.int64(read(rows.indices, (row, slot)))
            part += _linear_weight(prepared, index)
            count += index != 0
        found += part / np.float32(count) if prepared.mean_pooled[field] and count > 1 else part
    return np.float32(found)


@part(fastmath=FLAGS, inline="always")
def _weights_from(prepared: Prepared, index: int, column: int) -> Vector:
    """A vector of an embedding's numbers, from a column on."""
    values, scales, shift = prepared.embeddings
    found = load(values, index * prepared.sizes.stride + column, prepared.sizes.lanes)
    return found if is_float(values) else times(found, read(scales, index >> shift))


@part(fastmath=FLAGS, inline="always")
def _embedding(prepared: Prepared, rows: Rows, row: int, field: int, column: int) -> Vector:
    """A vector of the numbers of one row's field, from a column on, pooled where it has several values."""
    if prepared.sizes.single:
        return _weights_from(prepared, np.int64(read(rows.indices, (row, field))), column)
    found, count = zeros(prepared.sizes.lanes), 0
    for slot in range(read(prepared.slot_starts, field), read(prepared.slot_starts, field + 1)):
        index = np.int64(read(rows.indices, (row, slot)))
        found = plus(found, _weights_from(prepared, index, column))
        count += index != 0
    if prepared.mean_pooled[field] and count > 1:
        found = times(found, np.float32(1) / np.float32(count))
    return found


@part(fastmath=FLAGS)
def _pool(prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], out: Array, at: int) -> None:
    """Write the embeddings of some fields, one after the other."""
    width, lanes = prepared.sizes.width, len(prepared.sizes.lanes)
    for field in range(fields[0], fields[1]):
        for column in range(0, width, lanes):
            store(out, at + column, _embedding(prepared, rows, row, field, column))
        at += width


@part(fastmath=FLAGS)
def _linear_and_dense(
    prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], columns: tuple[int, int]
) -> np.float32:
    found = _pooled_linear(prepared, rows, row, fields[0], fields[1])
    for column in range(columns[0], columns[1]):
        found += read(rows.dense, (row, column)) * read(prepared.weights, 1 + column)
    return np.float32(found)


@part()
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


@part(fastmath=FLAGS)
def _add(
    prepared: Prepared,
    rows: Rows,
    row: int,
    fields: tuple[int, int],
    scratch: Array,
    at: tuple[int, int, int],
) -> None:
    """Add some fields' embeddings to the sums by factor, and to those of squares that lie behind them.

    Deepfm's are written down, too: they are inputs of its network. ``at`` is where the sums so far lie in the
    scratch array, where to put what they become, and where to put the inputs.
    """
    sizes, (before, after, inputs) = prepared.sizes, at
    factors = len(sizes.factors)
    for column in range(0, factors, len(sizes.lanes)):
        sums = load(scratch, before + column, sizes.lanes)
        squares = load(scratch, before + factors + column, sizes.lanes)
        to = inputs + column
        for field in range(fields[0], fields[1]):
            embedding = _embedding(prepared, rows, row, field, column)
            if sizes.kind == _DEEPFM:
                store(scratch, to, embedding)
                to += factors
            sums, squares = plus(sums, embedding), times_plus(embedding, embedding, squares)
        store(scratch, after + column, sums)
        store(scratch, after + factors + column, squares)


@part(fastmath=FLAGS)
def _pairs_of_sums(prepared: Prepared, scratch: Array, at: int) -> np.float32:
    """The terms of all pairs of fm and deepfm: half of the squares of sums less the sums of squares."""
    lanes, factors, found = prepared.sizes.lanes, len(prepared.sizes.factors), np.float32(0)
    for column in range(0, factors, len(lanes)):
        sums, squares = load(scratch, at + column, lanes), load(scratch, at + factors + column, lanes)
        found += total(minus(times(sums, sums), squares))
    return np.float32(0.5) * found


@part(fastmath=FLAGS)
def context(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> None:
    """Compute what a group has in common."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    kind, of_context = sizes.kind, sizes.context_fields
    logit = read(prepared.weights, 0) + _linear_and_dense(
        prepared, rows, row, (0, of_context), (0, sizes.context_dense)
    )
    at = inputs
    if kind in (_FM, _DEEPFM):
        for place in range(state + 1, state + sizes.state):
            write(scratch, place, np.float32(0))
        _add(prepared, rows, row, (0, of_context), scratch, (state + 1, state + 1, inputs))
        at += of_context * len(sizes.factors)
    elif kind != _LR:
        _pool(prepared, rows, row, (0, of_context), scratch, pooled)
        if kind == _FWFM:
            logit += _weighted_context(prepared, scratch, pooled, state + 1)
        else:
            found, at = _field_aware_context(prepared, scratch, places)
            logit += found
    if sizes.context_inputs > 0:
        for column in range(sizes.context_dense):
            write(scratch, at + column, read(rows.dense, (row, column)))
    write(scratch, state, logit)


@part(fastmath=FLAGS)
def _field_aware_context(prepared: Prepared, scratch: Array, places: Places) -> tuple[np.float32, int]:
    """The pairs among the context; what candidates' fields are paired with goes to the state."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    factors, width, fields, of_context = len(sizes.factors), sizes.width, sizes.fields, sizes.context_fields
    logit, at = np.float32(0), inputs
    for first in range(of_context):
        for second in range(first + 1, of_context):
            left, right = pooled + first * width + second * factors, pooled + second * width + first * factors
            found = dot(scratch, left, scratch, right, factors)
            logit += found
            if sizes.kind == _DEEPFFM:
                write(scratch, at, found)
                at += 1
    to = state + 1
    for candidate in range(of_context, fields):
        for field in range(of_context):
            start = pooled + field * width + candidate * factors
            for factor in range(factors):
                write(scratch, to + factor, read(scratch, start + factor))
            to += factors
    return logit, at


@part(fastmath=FLAGS)
def _weighted_context(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    """Fwfm's pairs among the context; each candidate field's weighted sum of the context goes to ``sums``."""
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    for place in range((fields - of_context) * factors):
        write(scratch, sums + place, np.float32(0))
    logit = np.float32(0)
    for first in range(of_context):
        for second in range(first + 1, of_context):
            logit += read(prepared.weights, pairs + first * fields + second) * dot(
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
    return np.float32(logit)


@part(fastmath=FLAGS)
def candidate(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> np.float32:
    """Compute what a candidate adds: returns the logit but for the network, whose inputs are written."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    kind, fields, of_context = sizes.kind, sizes.fields, sizes.context_fields
    logit = read(scratch, state) + _linear_and_dense(
        prepared, rows, row, (of_context, fields), (sizes.context_dense, sizes.dense)
    )
    at = inputs
    if kind in (_FM, _DEEPFM):
        _add(prepared, rows, row, (of_context, fields), scratch, (state + 1, pooled, inputs))
        logit += _pairs_of_sums(prepared, scratch, pooled)
        at += (fields - of_context) * len(sizes.factors)
    elif kind != _LR:
        _pool(prepared, rows, row, (of_context, fields), scratch, pooled)
        if kind == _FWFM:
            logit += _weighted_candidate(prepared, scratch, pooled, state + 1)
        else:
            found, at = _field_aware(prepared, scratch, pooled, state + 1, inputs)
            logit += found
    if sizes.candidate_inputs > 0:
        for column in range(sizes.context_dense, sizes.dense):
            write(scratch, at + column - sizes.context_dense, read(rows.dense, (row, column)))
    return np.float32(logit)


@part(fastmath=FLAGS)
def _weighted_candidate(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    logit = np.float32(0)
    for first in range(fields - of_context):
        own = pooled + first * factors
        logit += dot(scratch, own, scratch, sums + first * factors, factors)
        for second in range(first + 1, fields - of_context):
            weight = read(prepared.weights, pairs + (of_context + first) * fields + of_context + second)
            logit += weight * dot(scratch, own, scratch, pooled + second * factors, factors)
    return np.float32(logit)


@part(fastmath=FLAGS)
def _field_aware(
    prepared: Prepared, scratch: Array, pooled: int, state: int, inputs: int
) -> tuple[np.float32, int]:
    """The pairs with a candidate's fields, in order of (first, second); deepffm's become inputs."""
    sizes = prepared.sizes
    factors, width, fields, of_context = len(sizes.factors), sizes.width, sizes.fields, sizes.context_fields
    logit, at = np.float32(0), inputs
    for first in range(fields):
        for second in range(max(first + 1, of_context), fields):
            own = pooled + (second - of_context) * width + first * factors
            if first < of_context:
                other = state + ((second - of_context) * of_context + first) * factors
            else:
                other = pooled + (first - of_context) * width + second * factors
            found = dot(scratch, own, scratch, other, factors)
            logit += found
            if sizes.kind == _DEEPFFM:
                write(scratch, at, found)
                at += 1
    return logit, at


@part(fastmath=FLAGS)
def crossed(prepared: Prepared, rows: Rows, row: int) -> np.float32:
    """The weights of a row's interactions."""
    values, scales, shift = prepared.linear
    logit = np.float32(0)
    for column in range(rows.crossed.shape[1]):
        index = np.int64(rows.crossed[row, column])
        weight = np.float32(read(values, index * prepared.sizes.linear_stride))
        logit += weight * read(scales, index >> shift)
    return np.float32(logit)
