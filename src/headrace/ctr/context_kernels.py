"""The kernels of ``headrace.ctr.context``: rows go through in tiles, from their table rows to their logits.

They own no memory and count no references: everything between the inputs and the answers lies in one array
that the caller lends, at places that are computed once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.settings import KINDS
from headrace.ctr.tables import Table
from headrace.ctr.tiles import LINE, Operand, kernel, multiply, read, write
from headrace.tensors import Array

TILE_ROWS = 48
"""How many rows go through together: their activations fit the second cache, a block's fit the first."""

_LR, _FM, _FWFM, _FFM, _DEEPFM, _DEEPFFM = range(len(KINDS))
_FLAGS = {"contract", "reassoc", "nsz", "arcp"}


class Sizes(NamedTuple):
    """The numbers that a model's kernels are called with.

    Attributes:
        kind: Its place in ``KINDS``.
        factors: As long as an embedding, for each other field where it is field-aware: as part of the type,
            so that kernels are compiled for it and their loops over it become a few vector operations.
        width: The numbers in a row of the table of embeddings.
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


class Tile(NamedTuple):
    """Where the parts of a tile begin in the scratch array.

    Attributes:
        first: The columns of the first layer; 0 without a network.
        products: The first layer's products with the groups' contexts.
        activations: The layers' results.
        candidates: The network's inputs that differ within a group.
        contexts: The others.
        states: What the groups' candidates need.
        pooled: Embeddings that are needed for one row only.
    """

    first: int
    products: int
    activations: int
    candidates: int
    contexts: int
    states: int
    pooled: int


def scratch_size(prepared: Prepared) -> int:
    """How many numbers the kernels need for what lies between a tile's inputs and its logits."""
    sizes = prepared.sizes
    widths = [int(columns) for columns in prepared.layers[1:-1, 3]] if len(prepared.layers) else []
    first = widths[0] if widths else 0
    a_group = sizes.state + sizes.context_inputs + first
    a_row = sizes.candidate_inputs + sum(widths)
    pooled = (sizes.fields + 2) * max(sizes.width, len(sizes.factors))
    return (TILE_ROWS + 1) * a_group + TILE_ROWS * a_row + pooled + 4 * LINE


@kernel(fastmath=_FLAGS, inline="always")
def _dot(left: Array, left_start: int, right: Array, right_start: int, count: int) -> np.float32:
    total = np.float32(0)
    for at in range(count):
        total += read(left, left_start + at) * read(right, right_start + at)
    return np.float32(total)


@kernel(fastmath=_FLAGS)
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
                part += np.float32(read(values, index)) * read(scales, index >> shift)
                count += 1
        total += part / np.float32(count) if prepared.mean_pooled[field] and count > 1 else part
    return np.float32(total)


@kernel(fastmath=_FLAGS, inline="always")
def _pool_one(
    prepared: Prepared, rows: Rows, where: tuple[int, int], out: Array, at: int, width: int
) -> None:
    """Write the embedding of one row's field."""
    row, field = where
    values, scales, shift = prepared.embeddings
    start, stop = prepared.slot_starts[field], prepared.slot_starts[field + 1]
    index = np.int64(rows.indices[row, start])
    scale = read(scales, index >> shift)
    for column in range(width):
        write(out, at + column, np.float32(read(values, index * width + column)) * scale)
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
                read(out, at + column) + np.float32(read(values, index * width + column)) * scale,
            )
        count += 1
    if prepared.mean_pooled[field] and count > 1:
        part = np.float32(1) / np.float32(count)
        for column in range(width):
            write(out, at + column, read(out, at + column) * part)


@kernel(fastmath=_FLAGS)
def _pool(prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], out: Array, at: int) -> None:
    """Write the embeddings of some fields, one after the other."""
    width, factors = prepared.sizes.width, len(prepared.sizes.factors)
    if width == factors:  # a loop of known length
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, rows, (row, field), out, at + (field - fields[0]) * factors, factors)
    else:
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, rows, (row, field), out, at + (field - fields[0]) * width, width)


@kernel(fastmath=_FLAGS)
def _linear_and_dense(
    prepared: Prepared, rows: Rows, row: int, fields: tuple[int, int], columns: tuple[int, int]
) -> np.float32:
    total = _pooled_linear(prepared, rows, row, fields[0], fields[1])
    for column in range(columns[0], columns[1]):
        total += rows.dense[row, column] * read(prepared.weights, 1 + column)
    return np.float32(total)


@kernel()
def _same_context(sizes: Sizes, rows: Rows, row: int) -> bool:
    """Whether a row's context is that of the row before."""
    for slot in range(sizes.context_slots):
        if rows.indices[row, slot] != rows.indices[row - 1, slot]:
            return False
    for column in range(sizes.context_dense):
        if rows.dense[row, column] != rows.dense[row - 1, column]:
            return False
    return True


@kernel(fastmath=_FLAGS, inline="always")
def _sum_squares(scratch: Array, at: int, fields: int, factors: int, sums: int) -> np.float32:
    """Add embeddings to their sums; returns the sum of their squares."""
    squares = np.float32(0)
    for field in range(fields):
        for factor in range(factors):
            value = read(scratch, at + field * factors + factor)
            write(scratch, sums + factor, read(scratch, sums + factor) + value)
            squares += value * value
    return squares


@kernel(fastmath=_FLAGS)
def _context(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> None:
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


@kernel(fastmath=_FLAGS)
def _field_aware_context(prepared: Prepared, scratch: Array, places: Places) -> tuple[np.float32, int]:
    """The pairs among the context; what candidates' fields are paired with goes to the state."""
    state, inputs, pooled = places
    sizes = prepared.sizes
    factors, width, fields, of_context = len(sizes.factors), sizes.width, sizes.fields, sizes.context_fields
    total, at = np.float32(0), inputs
    for first in range(of_context):
        for second in range(first + 1, of_context):
            left, right = pooled + first * width + second * factors, pooled + second * width + first * factors
            found = _dot(scratch, left, scratch, right, factors)
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


@kernel(fastmath=_FLAGS)
def _weighted_context(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    """Fwfm's pairs among the context; each candidate field's weighted sum of the context goes to ``sums``."""
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    total = np.float32(0)
    for first in range(of_context):
        for second in range(first + 1, of_context):
            total += read(prepared.weights, pairs + first * fields + second) * _dot(
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


@kernel(fastmath=_FLAGS)
def _candidate(prepared: Prepared, rows: Rows, row: int, scratch: Array, places: Places) -> np.float32:
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
        total += np.float32(0.5) * (_dot(scratch, sums, scratch, sums, factors) - squares)
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


@kernel(fastmath=_FLAGS)
def _weighted_candidate(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> np.float32:
    sizes = prepared.sizes
    factors, fields, of_context = len(sizes.factors), sizes.fields, sizes.context_fields
    pairs = 1 + sizes.dense
    total = np.float32(0)
    for first in range(fields - of_context):
        own = pooled + first * factors
        total += _dot(scratch, own, scratch, sums + first * factors, factors)
        for second in range(first + 1, fields - of_context):
            weight = read(prepared.weights, pairs + (of_context + first) * fields + of_context + second)
            total += weight * _dot(scratch, own, scratch, pooled + second * factors, factors)
    return np.float32(total)


@kernel(fastmath=_FLAGS)
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
            found = _dot(scratch, own, scratch, other, factors)
            total += found
            if sizes.kind == _DEEPFFM:
                write(scratch, at, found)
                at += 1
    return total, at


@kernel()
def score(prepared: Prepared, rows: Rows, scratch: Array, out: Array, probabilities: bool) -> None:
    """Predict rows, tile by tile.

    Args:
        prepared: The model.
        rows: What is predicted.
        scratch: Room for ``scratch_size`` numbers: float32.
        out: The answers: float32 ``[rows]``.
        probabilities: Whether to answer probabilities; logits otherwise.
    """
    sizes = prepared.sizes
    tile = _tile(prepared)
    groups = 0
    for start in range(0, len(out), TILE_ROWS):
        stop = min(start + TILE_ROWS, len(out))
        known = 1 if groups > 0 else 0
        if known > 0:  # the last group may go on
            last = groups - 1
            _move(scratch, tile.states + last * sizes.state, tile.states, sizes.state)
            _move(scratch, tile.products + last * tile.first, tile.products, tile.first)
        groups = _contexts(prepared, rows, (start, stop), scratch, tile, known)
        group = known - 1
        for row in range(start, stop):
            if row == 0 or not _same_context(sizes, rows, row):
                group += 1
            own = row - start
            places = Places(
                tile.states + group * sizes.state,
                tile.candidates + own * sizes.candidate_inputs,
                tile.pooled,
            )
            out[row] = _candidate(prepared, rows, row, scratch, places) + _crossed(prepared, rows, row)
            _move(
                scratch, tile.products + group * tile.first, tile.activations + own * tile.first, tile.first
            )
        if len(prepared.layers) > 0:
            _network(prepared, scratch, tile, out, (start, stop))
        if probabilities:
            for row in range(start, stop):
                out[row] = np.float32(1) / (np.float32(1) + np.exp(-out[row]))


@kernel()
def _tile(prepared: Prepared) -> Tile:
    """Lay out the scratch array; what products are added to comes first: its rows are whole cache lines."""
    sizes, layers = prepared.sizes, prepared.layers
    first = layers[0, 3] if len(layers) > 0 else 0
    activations = (TILE_ROWS + 1) * first
    candidates = activations
    for layer in range(1, len(layers) - 1):
        candidates += TILE_ROWS * layers[layer, 3]
    contexts = candidates + TILE_ROWS * sizes.candidate_inputs
    states = contexts + (TILE_ROWS + 1) * sizes.context_inputs
    return Tile(first, 0, activations, candidates, contexts, states, states + (TILE_ROWS + 1) * sizes.state)


@kernel()
def _contexts(
    prepared: Prepared, rows: Rows, part: tuple[int, int], scratch: Array, tile: Tile, known: int
) -> int:
    """Compute what the groups that begin in a tile have in common; returns how many there are with the known.

    All of a tile come before its candidates: their product is then one of many rows.
    """
    sizes, layers, groups = prepared.sizes, prepared.layers, known
    for row in range(part[0], part[1]):
        if row == 0 or not _same_context(sizes, rows, row):
            inputs = tile.contexts + groups * sizes.context_inputs
            _context(
                prepared, rows, row, scratch, Places(tile.states + groups * sizes.state, inputs, tile.pooled)
            )
            groups += 1
    if len(layers) > 0:
        to = tile.products + known * tile.first
        _fill(prepared.weights, layers[0, 1], scratch, to, tile.first, groups - known)
        multiply(
            Operand(scratch, tile.contexts + known * sizes.context_inputs, sizes.context_inputs),
            Operand(prepared.weights, layers[0, 0], sizes.context_inputs),
            Operand(scratch, to, tile.first),
            tile.first,
            groups - known,
            False,
        )
    return groups


@kernel(fastmath=_FLAGS)
def _crossed(prepared: Prepared, rows: Rows, row: int) -> np.float32:
    """The weights of a row's interactions."""
    values, scales, shift = prepared.linear
    total = np.float32(0)
    for column in range(rows.crossed.shape[1]):
        index = np.int64(rows.crossed[row, column])
        total += np.float32(read(values, index)) * read(scales, index >> shift)
    return np.float32(total)


@kernel()
def _move(scratch: Array, start: int, to: int, count: int) -> None:
    if start != to:
        for at in range(count):
            write(scratch, to + at, read(scratch, start + at))


@kernel()
def _fill(weights: Array, start: int, scratch: Array, to: int, count: int, rows: int) -> None:
    """Put a bias under each of some rows."""
    for row in range(rows):
        for at in range(count):
            write(scratch, to + row * count + at, read(weights, start + at))


@kernel()
def _network(prepared: Prepared, scratch: Array, tile: Tile, out: Array, part: tuple[int, int]) -> None:
    """Add the network's output to a tile's logits; the context's part of the first layer is there already."""
    weights, layers, rows = prepared.weights, prepared.layers, part[1] - part[0]
    start, width = tile.candidates, prepared.sizes.candidate_inputs
    at = tile.activations
    for layer in range(1, len(layers) - 1):
        columns = layers[layer, 3]
        if layer > 1:
            _fill(weights, layers[layer, 1], scratch, at, columns, rows)
        multiply(
            Operand(scratch, start, width),
            Operand(weights, layers[layer, 0], layers[layer, 2]),
            Operand(scratch, at, columns),
            columns,
            rows,
            True,
        )
        start, width = at, columns
        at += TILE_ROWS * columns
    output = len(layers) - 1
    for row in range(rows):
        total = _dot(scratch, start + row * width, weights, layers[output, 0], layers[output, 2])
        out[part[0] + row] += total + read(weights, layers[output, 1])
