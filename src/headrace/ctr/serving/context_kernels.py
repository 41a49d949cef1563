"""The kernels of ``context``, which process rows in tiles from their table rows to their logits.

They allocate no memory and count no references. All intermediate results are in one scratch array of the
caller, at offsets that are computed once per call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import kernel, part
from headrace.ctr.kernels.matrix_product import Operand, multiply
from headrace.ctr.kernels.memory import LINE_BYTES, LINE_FLOATS
from headrace.ctr.serving.context_parts import (
    CandidateRows,
    Places,
    Prepared,
    candidate,
    context,
    crossed,
    dot,
    same_context,
)
from headrace.jit.intrinsics import prefetch_to_read, read, write
from headrace.jit.packed_arguments import Standing, given

TILE_ROWS = 48
"""Number of rows in a tile: their activations fit in the L2 cache, those of a block in the L1 cache."""


class Tile(NamedTuple):
    """Offsets of a tile's parts in the scratch array.

    Attributes:
        first: Number of columns of the first layer, not an offset; 0 without a network.
        products: Products of the first layer with the groups' contexts.
        activations: Activations of the layers.
        candidates: Network inputs that depend on the candidate.
        contexts: Network inputs that depend on the context alone.
        states: States of the groups for their candidates.
        marks: For each row of this tile and the next, whether it starts a group.
        pooled: Temporary embeddings of one row.
    """

    first: int
    products: int
    activations: int
    candidates: int
    contexts: int
    states: int
    marks: int
    pooled: int


def scratch_size(prepared: Prepared) -> int:
    """Return the size of the scratch array, in numbers."""
    sizes = prepared.sizes
    widths = [int(columns) for columns in prepared.layers[1:-1, 3]] if len(prepared.layers) else []
    first = widths[0] if widths else 0
    a_group = sizes.state + sizes.context_inputs + first
    a_row = sizes.candidate_inputs + sum(widths)
    pooled = (sizes.fields + 2) * max(sizes.width, len(sizes.factors))
    return (TILE_ROWS + 1) * a_group + TILE_ROWS * (a_row + 2) + pooled + 4 * LINE_FLOATS


@kernel()
def score(
    model: Standing[Prepared], indices: Array, dense: Array, crossed_rows: Array, scratch: Array, out: Array
) -> None:
    """Predict rows, tile by tile.

    Args:
        model: The model.
        indices: As in CandidateRows, like the next two; unpacking a tuple of them would be slow.
        dense: Dense features.
        crossed_rows: Rows of the interactions.
        scratch: Scratch array of ``scratch_size`` numbers: float32.
        out: Output for the logits: float32 ``[rows]``; with several heads ``[rows * heads]``, the logit
            first. The other heads must be zero on entry.
    """
    prepared, rows = given(model), CandidateRows(indices, dense, crossed_rows)
    sizes = prepared.sizes
    tile = _tile(prepared)
    groups, count, heads = 0, indices.shape[0], sizes.heads
    for row in range(min(TILE_ROWS, count)):
        _ask(prepared, rows, row, scratch, tile)
    for start in range(0, count, TILE_ROWS):
        stop = min(start + TILE_ROWS, count)
        known = 1 if groups > 0 else 0
        if known > 0:  # the last group may continue in this tile
            last = groups - 1
            _move(scratch, tile.states + last * sizes.state, tile.states, sizes.state)
            _move(scratch, tile.products + last * tile.first, tile.products, tile.first)
        groups = _contexts(prepared, rows, (start, stop), scratch, tile, known)
        group = known - 1
        for row in range(start, stop):
            if _begins(scratch, tile, row):
                group += 1
            if row + TILE_ROWS < count:
                _ask(prepared, rows, row + TILE_ROWS, scratch, tile)
            own = row - start
            places = Places(
                tile.states + group * sizes.state,
                tile.candidates + own * sizes.candidate_inputs,
                tile.pooled,
            )
            logit = candidate(prepared, rows, row, scratch, places) + crossed(prepared, rows, row)
            out[row * heads] = logit
            _move(
                scratch, tile.products + group * tile.first, tile.activations + own * tile.first, tile.first
            )
        if len(prepared.layers) > 0:
            _network(prepared, scratch, tile, out, (start, stop))


@kernel()
def to_probabilities(logits: Array) -> None:
    """Convert logits to probabilities in place."""
    for row in range(len(logits)):
        logits[row] = np.float32(1) / (np.float32(1) + np.exp(-logits[row]))


@part(inline="always")
def _begins(scratch: Array, tile: Tile, row: int) -> bool:
    """Return whether a row of this tile or the next starts a group, as noted by ``_ask``."""
    return bool(read(scratch, tile.marks + row % (2 * TILE_ROWS)) != 0)


@part()
def _ask(prepared: Prepared, rows: CandidateRows, row: int, scratch: Array, tile: Tile) -> None:
    """Note whether a row starts a group, and prefetch its table rows, one tile ahead."""
    sizes = prepared.sizes
    shared = row > 0 and same_context(sizes, rows, row)
    write(scratch, tile.marks + row % (2 * TILE_ROWS), np.float32(0 if shared else 1))
    linear, embeddings = prepared.linear.values, prepared.embeddings.values
    step = LINE_BYTES // embeddings.itemsize
    for slot in range(sizes.context_slots if shared else 0, rows.indices.shape[1]):
        index = np.int64(read(rows.indices, (row, slot)))
        prefetch_to_read(linear, index * sizes.linear_stride)
        for column in range(0, sizes.width, step):
            prefetch_to_read(embeddings, index * sizes.stride + column)


@part()
def _tile(prepared: Prepared) -> Tile:
    """Lay out the scratch array; products and activations come first, as their rows are whole cache lines."""
    sizes, layers = prepared.sizes, prepared.layers
    first = layers[0, 3] if len(layers) > 0 else 0
    activations = (TILE_ROWS + 1) * first
    candidates = activations
    for layer in range(1, len(layers) - 1):
        candidates += TILE_ROWS * layers[layer, 3]
    contexts = candidates + TILE_ROWS * sizes.candidate_inputs
    states = contexts + (TILE_ROWS + 1) * sizes.context_inputs
    marks = states + (TILE_ROWS + 1) * sizes.state
    return Tile(first, 0, activations, candidates, contexts, states, marks, marks + 2 * TILE_ROWS)


@part()
def _contexts(
    prepared: Prepared, rows: CandidateRows, part: tuple[int, int], scratch: Array, tile: Tile, known: int
) -> int:
    """Compute the states of the groups that start in a tile; return their number plus ``known``.

    All groups of a tile come before its candidates, so that the first layer multiplies many at once.
    """
    sizes, layers, groups = prepared.sizes, prepared.layers, known
    for row in range(part[0], part[1]):
        if _begins(scratch, tile, row):
            inputs = tile.contexts + groups * sizes.context_inputs
            context(
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


@part()
def _move(scratch: Array, start: int, to: int, count: int) -> None:
    if start != to:
        for at in range(count):
            write(scratch, to + at, read(scratch, start + at))


@part()
def _fill(weights: Array, start: int, scratch: Array, to: int, count: int, rows: int) -> None:
    """Set each of ``rows`` rows to the bias."""
    for row in range(rows):
        for at in range(count):
            write(scratch, to + row * count + at, read(weights, start + at))


@part()
def _network(prepared: Prepared, scratch: Array, tile: Tile, out: Array, part: tuple[int, int]) -> None:
    """Add the network's output to a tile's logits; the first layer already has the context's products."""
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
    output, heads = len(layers) - 1, prepared.sizes.heads
    inputs = layers[output, 2]
    for row in range(rows):
        for head in range(heads):
            total = dot(scratch, start + row * width, weights, layers[output, 0] + head * inputs, inputs)
            out[(part[0] + row) * heads + head] += total + read(weights, layers[output, 1] + head)
