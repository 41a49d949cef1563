"""Predictions for many candidates of a request; terms that depend on the context alone are computed once.

Adjacent rows with equal context form a group, wherever they come from: a request that sent its context once,
one that repeated it, or several requests merged in a batch. For each group, the linear part, the sums of the
pair terms and the first layer's product with the context are computed once. For each row, only the
candidate's terms are added.

A row's logit is the same sum in the same order whether or not its neighbours share its context. It is
bit-identical alone, in a group and in a batch.

The kernels process rows in tiles, from their table rows to their logits. They allocate no memory and count no
references. All intermediate results are in one scratch array of the caller, at offsets that are computed once
per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.kernels.matrix_product import Operand, multiply, pack, padded
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, POOLED, ModelSettings
from headrace.ctr.models.density import mean_logits, scratch_of
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.models.model_arrays import LINE_BYTES, LINE_FLOATS, aligned, fixed
from headrace.ctr.serving.context_parts import (
    PLACES,
    CandidateRows,
    Places,
    Prepared,
    Sizes,
    candidate,
    context,
    crossed,
    dot,
    same_context,
)
from headrace.jit.intrinsics import prefetch_to_read, read, write
from headrace.jit.kernel_cache import kernel, part
from headrace.jit.packed_arguments import Standing, given
from headrace.stream.block import Features

_MOST_LANES = 32
"""Maximum number of an embedding's elements that are read at once, so that they fit in a few registers."""

_NOTHING = fixed(np.empty((0, 0), np.uint32))


def prepare(settings: ModelSettings, features: Features, weights: Weights) -> Prepared:
    """Lay out a model's weights for serving.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights; tables are not copied, all other arrays are.
    """
    sizes = _sizes(settings, features, weights.tables)
    parts = [_alone(settings, features, weights.dense)]
    layers: list[tuple[int, int, int, int]] = []
    if settings.kind in DEEP:
        layers = _lay_out_network(settings, features, weights.dense, parts)
    linear = _plain(weights.tables["linear"])
    return Prepared(
        sizes,
        fixed(features.slot_starts),
        fixed(features.mean_pooled),
        linear,
        linear if settings.kind == "lr" else _plain(weights.tables["embeddings"]),
        fixed(_joined(parts)),
        fixed(np.array(layers, dtype=np.int64).reshape(-1, 4)),
    )


def _plain(table: Table) -> Table:
    """Return a table over the same memory as one-dimensional, plain NumPy arrays."""
    values = np.asarray(table.values)
    return Table(fixed(values.reshape(-1)), fixed(np.asarray(table.scales)), int(table.shift))


def _alone(settings: ModelSettings, features: Features, dense: Mapping[str, Array]) -> Array:
    """Return the weights outside the network, one after the other."""
    parts = [dense["bias"].reshape(-1)]
    if features.dense_width:
        parts.append(dense["dense"].reshape(-1))
    if settings.kind == "fwfm":
        parts.append(dense["pairs"].reshape(-1))
    return np.concatenate(parts)


def _joined(parts: list[Array]) -> Array:
    """Return all weights in one array, each part aligned to a cache line."""
    whole = aligned(sum(_lines(len(one)) for one in parts))
    start = 0
    for one in parts:
        whole[start : start + len(one)] = one
        start += _lines(len(one))
    return whole


def _lines(count: int) -> int:
    return -(-count // LINE_FLOATS) * LINE_FLOATS


def _sizes(settings: ModelSettings, features: Features, tables: Mapping[str, Table]) -> Sizes:
    fields, of_context, factors = len(features.categorical), features.context_fields, settings.factors
    of_candidate = fields - of_context
    field_aware = settings.kind in FIELD_AWARE
    context_inputs = candidate_inputs = 0
    if settings.kind in DEEP:
        context_inputs = len(network_inputs(settings, features, context=True))
        candidate_inputs = len(network_inputs(settings, features, context=False))
    kind = "deepfm" if settings.kind in POOLED else settings.kind
    state_size = {"lr": 0, "fm": 2 * factors, "deepfm": 2 * factors, "fwfm": of_candidate * factors}.get(
        kind, of_candidate * of_context * factors
    )
    lanes = max(size for size in range(1, _MOST_LANES + 1) if factors % size == 0)
    return Sizes(
        kind=PLACES.index(kind),
        factors=() if settings.kind == "lr" else (None,) * factors,
        lanes=() if settings.kind == "lr" else (None,) * lanes,
        width=0 if settings.kind == "lr" else factors * (fields if field_aware else 1),
        stride=tables["linear" if settings.kind == "lr" else "embeddings"].values.shape[1],
        linear_stride=tables["linear"].values.shape[1],
        single=int(features.single_valued),
        fields=fields,
        context_fields=of_context,
        context_slots=features.context_slots,
        dense=features.dense_width,
        context_dense=features.context_dense,
        context_inputs=context_inputs,
        candidate_inputs=candidate_inputs,
        state=state_size + 1,
        heads=settings.heads,
    )


def network_inputs(settings: ModelSettings, features: Features, *, context: bool) -> list[int]:
    """Return the network's inputs that depend on the context alone, or those that do not, in order.

    Args:
        settings: Settings of a deep model.
        features: Layout of the model's rows.
        context: Whether to return the inputs that depend on the context alone.
    """
    fields, of_context = len(features.categorical), features.context_fields
    if settings.kind in POOLED:
        alone = [field < of_context for field in range(fields) for _ in range(settings.factors)]
    else:  # context fields come first, so a pair is in the context if its second field is
        alone = [second < of_context for first in range(fields) for second in range(first + 1, fields)]
    alone += [column < features.context_dense for column in range(features.dense_width)]
    return [index for index, whether in enumerate(alone) if whether is context]


def _lay_out_network(
    settings: ModelSettings, features: Features, dense: Mapping[str, Array], parts: list[Array]
) -> list[tuple[int, int, int, int]]:
    layers = []

    def add(array: Array) -> int:
        start = sum(_lines(len(one)) for one in parts)
        parts.append(array)
        return start

    def add_layer(weights: Array, bias: Array) -> None:
        wide = np.zeros(padded(len(bias)), np.float32)
        wide[: len(bias)] = bias
        layers.append((add(pack(weights)), add(wide), len(weights), len(wide)))

    first, bias = dense["layer0.weights"], dense["layer0.bias"]
    add_layer(first[network_inputs(settings, features, context=True)], bias)
    add_layer(first[network_inputs(settings, features, context=False)], bias)
    inputs = len(bias)
    for number in range(1, len(settings.hidden)):
        add_layer(dense[f"layer{number}.weights"], dense[f"layer{number}.bias"])
        inputs = len(dense[f"layer{number}.bias"])
    last = len(settings.hidden)
    output = np.ascontiguousarray(dense[f"layer{last}.weights"].T).reshape(-1)  # one head after the other
    layers.append((add(output), add(dense[f"layer{last}.bias"].reshape(-1)), inputs, settings.heads))
    return layers


class GroupedScorer:
    """A click model laid out for serving. Immutable; safe to call from several threads at once."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Lay out a model.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            weights: The model's weights.
        """
        self._missing = Missing.of(settings, features)
        prepared = prepare(settings, flagged(settings, features), weights)
        self._components = settings.components if settings.kind == "mdn" else 0
        self._model = Standing(prepared)
        self._crossing = crossing(settings, features) if settings.interactions else None
        self._scratch: list[Array] = []  # free scratch arrays; list methods are atomic
        self._scratch_size = scratch_size(prepared)

    def predict(self, indices: Array, dense: Array) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``; see ``logits``."""
        out = self.logits(indices, dense)
        to_probabilities(out)
        return out

    def heads(self, indices: Array, dense: Array) -> Array:
        """Return the heads of an mdn's distributions; see ``headrace.ctr.models.density``.

        Args:
            indices: As for ``logits``.
            dense: As for ``logits``.

        Returns:
            float32 ``[rows, heads]``.
        """
        out = np.zeros((len(indices), self._model.value.sizes.heads), np.float32)
        self._score(indices, dense, out.reshape(-1))
        return out

    def logits(self, indices: Array, dense: Array) -> Array:
        """Return the logits of rows: float32 ``[rows]``.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``, all below ``features.rows``.
            dense: Dense features: float32 ``[rows, dense_width]``.
        """
        if self._components:
            logits = np.empty(len(indices), np.float32)
            mean_logits(self.heads(indices, dense), scratch_of(self._components), logits)
            return logits
        out = np.empty(len(indices), np.float32)
        self._score(indices, dense, out)
        return out

    def _score(self, indices: Array, dense: Array, out: Array) -> None:
        if self._missing is not None:
            dense = self._missing.flag(dense)
        crossed = _NOTHING if self._crossing is None else fixed(self._crossing.of(indices))
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = aligned(self._scratch_size)
        score(self._model, fixed(indices), fixed(dense), crossed, scratch, out)
        self._scratch.append(scratch)


TILE_ROWS = 48
"""Number of rows in a tile: activations of a tile fit in L2, those of a block of ``matrix_product`` in L1."""


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
        indices: As in ``CandidateRows``; three arguments, because unpacking a tuple of them would be slow.
        dense: As in ``CandidateRows``.
        crossed_rows: As ``crossed`` in ``CandidateRows``.
        scratch: Scratch array of ``scratch_size`` numbers: float32.
        out: Output for the logits: float32 ``[rows]``; with several heads ``[rows * heads]``, the logit
            first. The other heads must be zero on entry.
    """
    prepared, rows = given(model), CandidateRows(indices, dense, crossed_rows)
    sizes = prepared.sizes
    tile = _tile(prepared)
    groups, count, heads = 0, indices.shape[0], sizes.heads
    for row in range(min(TILE_ROWS, count)):
        _mark_and_prefetch(prepared, rows, row, scratch, tile)
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
                _mark_and_prefetch(prepared, rows, row + TILE_ROWS, scratch, tile)
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
    """Return whether a row of this tile or the next starts a group, as marked by ``_mark_and_prefetch``."""
    return bool(read(scratch, tile.marks + row % (2 * TILE_ROWS)) != 0)


@part()
def _mark_and_prefetch(prepared: Prepared, rows: CandidateRows, row: int, scratch: Array, tile: Tile) -> None:
    """Mark whether a row starts a group, and prefetch its table rows; called one tile ahead."""
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
