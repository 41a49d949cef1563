"""Parts of the kernels of ``context``: the terms of one row's context, and those that a candidate adds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table
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
from headrace.ctr.model_settings import Kind
from headrace.jit.intrinsics import read, write
from headrace.jit.kernel_cache import part

PLACES: tuple[Kind, ...] = ("lr", "fm", "fwfm", "ffm", "deepfm", "deepffm")
"""The kinds, in the order of their codes in kernels."""

_LR, _FM, _FWFM, _FFM, _DEEPFM, _DEEPFFM = range(len(PLACES))
FLAGS = {"contract", "reassoc", "nsz", "arcp"}
"""Optimisations allowed to LLVM: sums may be reordered, but NaN and infinity keep their meaning."""


class Sizes(NamedTuple):
    """Sizes of a model, as its kernels take them.

    Attributes:
        kind: Index in ``PLACES``; an mdn has that of deepfm, whose sums it shares.
        factors: Tuple as long as an embedding (field-aware: for one other field). The length is part of the
            type, so that kernels are compiled for it, and loops over it become a few vector operations.
        lanes: Tuple as long as the part of an embedding that is read at once: the whole, unless it is very
            long.
        width: Numbers in a row's embedding; for field-aware kinds, in all embeddings of a row.
        stride: Numbers in a row of the embeddings table, including an optimizer's state.
        linear_stride: Numbers in a row of the linear table, including an optimizer's state.
        single: 1 if every field has one slot, otherwise 0.
        fields: Number of categorical fields.
        context_fields: Number of them in the context.
        context_slots: Number of slots of the context's fields.
        dense: Number of dense columns.
        context_dense: Number of them in the context.
        context_inputs: Number of the network's inputs that depend on the context alone.
        candidate_inputs: Number of the network's other inputs.
        state: Numbers kept for each group, for its candidates.
        heads: Outputs per row: the logit, and the other heads of an mdn.
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


class CandidateRows(NamedTuple):
    """The rows to predict.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
        crossed: Rows of the interactions in the linear table: uint32 ``[rows, interactions]``.
    """

    indices: Array
    dense: Array
    crossed: Array


class Places(NamedTuple):
    """Offsets in the scratch array.

    Attributes:
        state: State of a group for its candidates: the logit of the context, then the values with which
            candidates are paired (fm, deepfm: the sums, and the sums of squares, by factor).
        inputs: Inputs of the network.
        pooled: Temporary embeddings of one row.
    """

    state: int
    inputs: int
    pooled: int


class Prepared(NamedTuple):
    """A model in the form that kernels take.

    Attributes:
        sizes: Sizes of the model.
        slot_starts: As in Features.
        mean_pooled: As in Features.
        linear: Table of linear weights.
        embeddings: Table of embeddings; for lr, the linear table again.
        weights: The bias, the weights of dense columns, those of field pairs, then the network: float32.
        layers: Layout of the network in ``weights``: int64 ``[layers + 1, 4]``, each row with the start of
            the weights, the start of the bias, the inputs and the columns. The first layer has two rows, for
            the inputs of the context and for the others; the last row is the output's.
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
    """Return the dot product of ``count`` elements of two arrays."""
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
def _pooled_linear(prepared: Prepared, rows: CandidateRows, row: int, first: int, last: int) -> np.float32:
    """Return the linear part of the fields from ``first`` up to ``last``, exclusive; row 0 is zero."""
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
    """Load a vector of an embedding's numbers, starting at a column."""
    values, scales, shift = prepared.embeddings
    found = load(values, index * prepared.sizes.stride + column, prepared.sizes.lanes)
    return found if is_float(values) else times(found, read(scales, index >> shift))


@part(fastmath=FLAGS, inline="always")
def _embedding(prepared: Prepared, rows: CandidateRows, row: int, field: int, column: int) -> Vector:
    """Return a vector of a field's embedding in a row, starting at a column, pooled over several values."""
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
def _pool(
    prepared: Prepared, rows: CandidateRows, row: int, fields: tuple[int, int], out: Array, at: int
) -> None:
    """Write the pooled embeddings of a range of fields, one after the other."""
    width, lanes = prepared.sizes.width, len(prepared.sizes.lanes)
    for field in range(fields[0], fields[1]):
        for column in range(0, width, lanes):
            store(out, at + column, _embedding(prepared, rows, row, field, column))
        at += width


@part(fastmath=FLAGS)
def _linear_and_dense(
    prepared: Prepared, rows: CandidateRows, row: int, fields: tuple[int, int], columns: tuple[int, int]
) -> np.float32:
    found = _pooled_linear(prepared, rows, row, fields[0], fields[1])
    for column in range(columns[0], columns[1]):
        found += read(rows.dense, (row, column)) * read(prepared.weights, 1 + column)
    return np.float32(found)


@part()
def same_context(sizes: Sizes, rows: CandidateRows, row: int) -> bool:
    """Return whether a row has the previous row's context; no early exit, so that it is vectorised."""
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
    rows: CandidateRows,
    row: int,
    fields: tuple[int, int],
    scratch: Array,
    at: tuple[int, int, int],
) -> None:
    """Add some fields' embeddings to the sums by factor, and to the sums of squares that follow them.

    For deepfm, also write the embeddings, which are inputs of its network. ``at`` has three offsets in the
    scratch array: of the sums so far, of the new sums, and of the inputs.
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
    """Return the pair terms of fm and deepfm: half of the squares of sums minus the sums of squares."""
    lanes, factors, found = prepared.sizes.lanes, len(prepared.sizes.factors), np.float32(0)
    for column in range(0, factors, len(lanes)):
        sums, squares = load(scratch, at + column, lanes), load(scratch, at + factors + column, lanes)
        found += total(minus(times(sums, sums), squares))
    return np.float32(0.5) * found


@part(fastmath=FLAGS)
def context(prepared: Prepared, rows: CandidateRows, row: int, scratch: Array, places: Places) -> None:
    """Compute the state of a group, and the context's part of the network's inputs."""
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
    """Sum the pairs within the context; copy the embeddings that pair with candidates to the state."""
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
    """Return fwfm's pair terms in the context; write a weighted sum per candidate field to ``sums``."""
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
def candidate(
    prepared: Prepared, rows: CandidateRows, row: int, scratch: Array, places: Places
) -> np.float32:
    """Return a row's logit without the network and interactions; write the candidate's network inputs."""
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
    """Sum the pairs with a candidate's fields; for deepffm, also write them, in order, as network inputs."""
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
def crossed(prepared: Prepared, rows: CandidateRows, row: int) -> np.float32:
    """Return the sum of the weights of a row's interactions."""
    values, scales, shift = prepared.linear
    logit = np.float32(0)
    for column in range(rows.crossed.shape[1]):
        index = np.int64(rows.crossed[row, column])
        weight = np.float32(read(values, index * prepared.sizes.linear_stride))
        logit += weight * read(scales, index >> shift)
    return np.float32(logit)
