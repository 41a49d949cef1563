"""Predictions for many candidates of one request: what depends on the context alone is computed once.

Neighbouring rows whose context is equal form a group, wherever they come from: a request that sent its context
once, one that repeated it, or several requests merged in a batch. For each group the linear part, the sums of
the pair terms and the first layer's product with the context are computed once; for each row only what its
candidate adds. Rows go through in tiles, from their table rows to their logits, so that everything between
stays in the nearest caches.

A row's logit is the same sum in the same order whether its neighbours share its context or not: to the bit the
same alone, in a group and in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.model import Weights
from headrace.ctr.settings import DEEP, KINDS, ModelSettings
from headrace.ctr.tables import Table
from headrace.ctr.tiles import LINE, aligned, multiply, pack, padded, read, write
from headrace.stream.features import Features
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


def prepare(settings: ModelSettings, features: Features, weights: Weights) -> Prepared:
    """Lay out a model's weights for serving.

    Args:
        settings: What it is.
        features: The layout of its rows.
        weights: Its weights; tables are taken as they are, everything else is copied.
    """
    sizes = _sizes(settings, features)
    parts = [_alone(settings, features, weights.dense)]
    layers: list[tuple[int, int, int, int]] = []
    if settings.kind in DEEP:
        layers = _lay_out_network(settings, features, weights.dense, parts)
    linear = _plain(weights.tables["linear"])
    return Prepared(
        sizes,
        features.slot_starts,
        features.mean_pooled,
        linear,
        linear if settings.kind == "lr" else _plain(weights.tables["embeddings"]),
        _joined(parts),
        np.array(layers, dtype=np.int64).reshape(-1, 4),
    )


def _plain(table: Table) -> Table:
    """The same memory as a plain array of one dimension: kernels know no mapped ones."""
    values = np.asarray(table.values)
    return Table(np.ascontiguousarray(values).reshape(-1), np.asarray(table.scales), int(table.shift))


def _alone(settings: ModelSettings, features: Features, dense: Mapping[str, Array]) -> Array:
    """The weights outside of the network, one after the other."""
    parts = [dense["bias"].reshape(-1)]
    if features.dense_width:
        parts.append(dense["dense"].reshape(-1))
    if settings.kind == "fwfm":
        parts.append(dense["pairs"].reshape(-1))
    return np.concatenate(parts)


def _joined(parts: list[Array]) -> Array:
    """All weights in one array, each part from the start of a cache line on."""
    whole = aligned(sum(_lines(len(part)) for part in parts))
    start = 0
    for part in parts:
        whole[start : start + len(part)] = part
        start += _lines(len(part))
    return whole


def _lines(count: int) -> int:
    return -(-count // LINE) * LINE


def _sizes(settings: ModelSettings, features: Features) -> Sizes:
    fields, of_context, factors = len(features.categorical), features.context_fields, settings.factors
    of_candidate = fields - of_context
    field_aware = settings.kind in ("ffm", "deepffm")
    inputs = state = 0, 0
    context_inputs = candidate_inputs = 0
    if settings.kind in DEEP:
        inputs = (
            len(network_inputs(settings, features, context=True)),
            len(network_inputs(settings, features, context=False)),
        )
        context_inputs, candidate_inputs = inputs
    state_size = {"lr": 0, "fm": factors, "deepfm": factors, "fwfm": of_candidate * factors}.get(
        settings.kind, of_candidate * of_context * factors
    )
    return Sizes(
        kind=KINDS.index(settings.kind),
        factors=() if settings.kind == "lr" else (None,) * factors,
        width=0 if settings.kind == "lr" else factors * (fields if field_aware else 1),
        fields=fields,
        context_fields=of_context,
        context_slots=features.context_slots,
        dense=features.dense_width,
        context_dense=features.context_dense,
        context_inputs=context_inputs,
        candidate_inputs=candidate_inputs,
        state=state_size + 2,
    )


def network_inputs(settings: ModelSettings, features: Features, *, context: bool) -> list[int]:
    """Which of the network's inputs depend on the context alone, or which do not, in their order.

    Args:
        settings: A deep model.
        features: The layout of its rows.
        context: Which of the two.
    """
    fields, of_context = len(features.categorical), features.context_fields
    if settings.kind == "deepfm":
        alone = [field < of_context for field in range(fields) for _ in range(settings.factors)]
    else:  # a pair's later field decides: fields of the context come first
        alone = [second < of_context for first in range(fields) for second in range(first + 1, fields)]
    alone += [column < features.context_dense for column in range(features.dense_width)]
    return [index for index, whether in enumerate(alone) if whether is context]


def _lay_out_network(
    settings: ModelSettings, features: Features, dense: Mapping[str, Array], parts: list[Array]
) -> list[tuple[int, int, int, int]]:
    layers = []

    def add(array: Array) -> int:
        start = sum(_lines(len(part)) for part in parts)
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
    output = dense[f"layer{last}.weights"].reshape(-1)
    layers.append((add(output), add(dense[f"layer{last}.bias"].reshape(-1)), inputs, 1))
    return layers


class GroupedScorer:
    """A click model laid out for serving. Immutable; may be called by many threads at once."""

    def __init__(self, settings: ModelSettings, features: Features, weights: Weights) -> None:
        """Lay it out.

        Args:
            settings: What it is.
            features: The layout of its rows.
            weights: Its weights.
        """
        self._prepared = prepare(settings, features, weights)
        self._scratch: list[Array] = []  # what no call is using; its methods are atomic
        self._scratch_size = scratch_size(self._prepared)

    def logits(self, indices: Array, dense: Array, crossed: Array) -> Array:
        """The logits of rows; see ``headrace.ctr.model.Scorer``.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``.
            dense: Dense features: float32 ``[rows, dense_width]``.
            crossed: Rows of the linear table that interactions add: uint32 ``[rows, interactions]``.
        """
        out = np.empty(len(indices), np.float32)
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = aligned(self._scratch_size)
        score(self._prepared, indices, dense, crossed, scratch, out)
        self._scratch.append(scratch)
        return out


# ---- Kernels ----


def scratch_size(prepared: Prepared) -> int:
    """How many numbers the kernels need for what lies between a tile's inputs and its logits."""
    sizes = prepared.sizes
    widths = [int(columns) for columns in prepared.layers[1:-1, 3]] if len(prepared.layers) else []
    first = widths[0] if widths else 0
    a_group = sizes.state + sizes.context_inputs + first
    a_row = sizes.candidate_inputs + sum(widths)
    pooled = (sizes.fields + 2) * max(sizes.width, len(sizes.factors))
    return (TILE_ROWS + 1) * a_group + TILE_ROWS * a_row + pooled + 4 * LINE


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS, inline="always")
def _dot(left: Array, left_start: int, right: Array, right_start: int, count: int) -> float:
    total = np.float32(0)
    for at in range(count):
        total += read(left, left_start + at) * read(right, right_start + at)
    return total


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _pooled_linear(prepared: Prepared, indices: Array, row: int, first: int, last: int) -> float:
    """The linear part of the fields ``first`` to ``last``."""
    values, scales, shift = prepared.linear
    total = np.float32(0)
    for field in range(first, last):
        start, stop = prepared.slot_starts[field], prepared.slot_starts[field + 1]
        part, count = np.float32(0), 0
        for slot in range(start, stop):
            index = np.int64(indices[row, slot])
            if index != 0:
                part += np.float32(read(values, index)) * read(scales, index >> shift)
                count += 1
        total += part / np.float32(count) if prepared.mean_pooled[field] and count > 1 else part
    return total


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS, inline="always")
def _pool_one(
    prepared: Prepared, indices: Array, row: int, field: int, out: Array, at: int, width: int
) -> None:
    """Write a field's embedding."""
    values, scales, shift = prepared.embeddings
    start, stop = prepared.slot_starts[field], prepared.slot_starts[field + 1]
    index = np.int64(indices[row, start])
    scale = read(scales, index >> shift)
    for column in range(width):
        write(out, at + column, np.float32(read(values, index * width + column)) * scale)
    if stop - start == 1:
        return
    count = 1 if index != 0 else 0
    for slot in range(start + 1, stop):
        index = np.int64(indices[row, slot])
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


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _pool(prepared: Prepared, indices: Array, row: int, fields: tuple[int, int], out: Array, at: int) -> None:
    """Write the embeddings of some fields, one after the other."""
    width, factors = prepared.sizes.width, len(prepared.sizes.factors)
    if width == factors:  # a loop of known length
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, indices, row, field, out, at + (field - fields[0]) * factors, factors)
    else:
        for field in range(fields[0], fields[1]):
            _pool_one(prepared, indices, row, field, out, at + (field - fields[0]) * width, width)


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _linear_and_dense(
    prepared: Prepared, indices: Array, dense: Array, row: int, fields: tuple[int, int], columns: tuple[int, int]
) -> float:  # fmt: skip
    total = _pooled_linear(prepared, indices, row, fields[0], fields[1])
    for column in range(columns[0], columns[1]):
        total += dense[row, column] * read(prepared.weights, 1 + column)
    return total


@numba.njit(cache=True, nogil=True, _nrt=False)
def _same_context(sizes: Sizes, indices: Array, dense: Array, row: int) -> bool:
    """Whether a row's context is that of the row before."""
    for slot in range(sizes.context_slots):
        if indices[row, slot] != indices[row - 1, slot]:
            return False
    for column in range(sizes.context_dense):
        if dense[row, column] != dense[row - 1, column]:
            return False
    return True


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS, inline="always")
def _sum_squares(embeddings: Array, at: int, fields: int, factors: int, sums: Array, sums_at: int) -> float:
    """Add embeddings to their sums; returns the sum of their squares."""
    squares = np.float32(0)
    for field in range(fields):
        for factor in range(factors):
            value = read(embeddings, at + field * factors + factor)
            write(sums, sums_at + factor, read(sums, sums_at + factor) + value)
            squares += value * value
    return squares


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _context(
    prepared: Prepared, indices: Array, dense: Array, row: int, scratch: Array, state: int, inputs: int, pooled: int
) -> None:  # fmt: skip
    """Compute what a group has in common.

    ``state`` becomes the linear part with the pair terms among the context, the sum of squares (fm, deepfm),
    and what candidates are paired with; ``inputs`` the network's inputs.
    """
    sizes = prepared.sizes
    kind, factors, width, fields = sizes.kind, len(sizes.factors), sizes.width, sizes.fields
    of_context = sizes.context_fields
    total = read(prepared.weights, 0) + _linear_and_dense(
        prepared, indices, dense, row, (0, of_context), (0, sizes.context_dense)
    )
    squares = np.float32(0)
    embeddings = inputs if kind == _DEEPFM else pooled
    if kind != _LR:
        _pool(prepared, indices, row, (0, of_context), scratch, embeddings)
        for place in range(state + 2, state + sizes.state):
            write(scratch, place, np.float32(0))
    at = inputs
    if kind in (_FM, _DEEPFM):
        squares = _sum_squares(scratch, embeddings, of_context, factors, scratch, state + 2)
        at += of_context * factors
    elif kind == _FWFM:
        total += _weighted_context(prepared, scratch, pooled, state + 2)
    elif kind != _LR:
        pairs = 0
        for first in range(of_context):
            for second in range(first + 1, of_context):
                found = _dot(
                    scratch, pooled + first * width + second * factors,
                    scratch, pooled + second * width + first * factors, factors,
                )  # fmt: skip
                total += found
                if kind == _DEEPFFM:
                    write(scratch, inputs + pairs, found)
                pairs += 1
        at += pairs
        for candidate in range(of_context, fields):
            for field in range(of_context):
                to = state + 2 + ((candidate - of_context) * of_context + field) * factors
                start = pooled + field * width + candidate * factors
                for factor in range(factors):
                    write(scratch, to + factor, read(scratch, start + factor))
    if sizes.context_inputs > 0:
        for column in range(sizes.context_dense):
            write(scratch, at + column, dense[row, column])
    write(scratch, state, total)
    write(scratch, state + 1, squares)


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _weighted_context(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> float:
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
    return total


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _candidate(
    prepared: Prepared, indices: Array, dense: Array, row: int, scratch: Array, state: int, inputs: int, pooled: int
) -> float:  # fmt: skip
    """Compute what a candidate adds: returns the logit but for the network, whose inputs go to ``inputs``."""
    sizes = prepared.sizes
    kind, factors, width, fields = sizes.kind, len(sizes.factors), sizes.width, sizes.fields
    of_context = sizes.context_fields
    of_candidate = fields - of_context
    total = read(scratch, state) + _linear_and_dense(
        prepared, indices, dense, row, (of_context, fields), (sizes.context_dense, sizes.dense)
    )
    embeddings = inputs if kind == _DEEPFM else pooled
    if kind != _LR:
        _pool(prepared, indices, row, (of_context, fields), scratch, embeddings)
    at = inputs
    if kind in (_FM, _DEEPFM):
        sums = pooled + of_candidate * width
        for factor in range(factors):
            write(scratch, sums + factor, read(scratch, state + 2 + factor))
        squares = read(scratch, state + 1) + _sum_squares(
            scratch, embeddings, of_candidate, factors, scratch, sums
        )
        total += np.float32(0.5) * (_dot(scratch, sums, scratch, sums, factors) - squares)
        at += of_candidate * factors
    elif kind == _FWFM:
        total += _weighted_candidate(prepared, scratch, pooled, state + 2)
    elif kind != _LR:
        found, at = _field_aware(prepared, scratch, pooled, state + 2, inputs)
        total += found
    if sizes.candidate_inputs > 0:
        for column in range(sizes.context_dense, sizes.dense):
            write(scratch, at + column - sizes.context_dense, dense[row, column])
    return total


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _weighted_candidate(prepared: Prepared, scratch: Array, pooled: int, sums: int) -> float:
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
    return total


@numba.njit(cache=True, nogil=True, _nrt=False, fastmath=_FLAGS)
def _field_aware(
    prepared: Prepared, scratch: Array, pooled: int, state: int, inputs: int
) -> tuple[float, int]:
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


@numba.njit(cache=True, nogil=True, _nrt=False)
def score(
    prepared: Prepared, indices: Array, dense: Array, crossed: Array, scratch: Array, out: Array
) -> None:
    """Compute the logits of rows, tile by tile.

    Args:
        prepared: The model.
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
        crossed: Rows of the linear table that interactions add: uint32 ``[rows, interactions]``.
        scratch: Room for ``scratch_size`` numbers: float32.
        out: The logits: float32 ``[rows]``.
    """
    sizes, layers = prepared.sizes, prepared.layers
    deep = len(layers) > 0
    first = layers[0, 3] if deep else 0
    products = 0  # what products are added to comes first: its rows are whole cache lines
    activations = products + (TILE_ROWS + 1) * first
    candidates = activations
    for layer in range(1, len(layers) - 1):
        candidates += TILE_ROWS * layers[layer, 3]
    contexts = candidates + TILE_ROWS * sizes.candidate_inputs
    states = contexts + (TILE_ROWS + 1) * sizes.context_inputs
    pooled = states + (TILE_ROWS + 1) * sizes.state
    groups = 0
    for start in range(0, len(indices), TILE_ROWS):
        stop = min(start + TILE_ROWS, len(indices))
        if groups > 0:  # the last group may go on
            _move(scratch, states + (groups - 1) * sizes.state, states, sizes.state)
            _move(scratch, products + (groups - 1) * first, products, first)
        known = 1 if groups > 0 else 0
        groups = known
        # The groups' shared parts come first, all of a tile at once: their product is then one of many rows.
        for row in range(start, stop):
            if row == 0 or not _same_context(sizes, indices, dense, row):
                _context(prepared, indices, dense, row, scratch, states + groups * sizes.state,
                         contexts + groups * sizes.context_inputs, pooled)  # fmt: skip
                groups += 1
        if deep:
            _fill(prepared.weights, layers[0, 1], scratch, products + known * first, first, groups - known)
            multiply(scratch, contexts + known * sizes.context_inputs, sizes.context_inputs, prepared.weights,
                     layers[0, 0], sizes.context_inputs, scratch, products + known * first, first, first,
                     groups - known, False)  # fmt: skip
        group = known - 1
        for row in range(start, stop):
            if row == 0 or not _same_context(sizes, indices, dense, row):
                group += 1
            own = row - start
            logit = _candidate(prepared, indices, dense, row, scratch, states + group * sizes.state,
                               candidates + own * sizes.candidate_inputs, pooled)  # fmt: skip
            for column in range(crossed.shape[1]):
                index = np.int64(crossed[row, column])
                scale = read(prepared.linear.scales, index >> prepared.linear.shift)
                logit += np.float32(read(prepared.linear.values, index)) * scale
            out[row] = logit
            if deep:
                _move(scratch, products + group * first, activations + own * first, first)
        if deep:
            _network(prepared, scratch, candidates, activations, out[start:stop])


@numba.njit(cache=True, nogil=True, _nrt=False)
def _move(scratch: Array, start: int, to: int, count: int) -> None:
    if start != to:
        for at in range(count):
            write(scratch, to + at, read(scratch, start + at))


@numba.njit(cache=True, nogil=True, _nrt=False)
def _fill(weights: Array, start: int, scratch: Array, to: int, count: int, rows: int) -> None:
    """Put a bias under each of some rows."""
    for row in range(rows):
        for at in range(count):
            write(scratch, to + row * count + at, read(weights, start + at))


@numba.njit(cache=True, nogil=True, _nrt=False)
def _network(prepared: Prepared, scratch: Array, inputs: int, activations: int, out: Array) -> None:
    """Add the network's output to a tile's logits; the context's part of the first layer is there already."""
    weights, layers, rows = prepared.weights, prepared.layers, len(out)
    start, width = inputs, prepared.sizes.candidate_inputs
    at = activations
    for layer in range(1, len(layers) - 1):
        columns = layers[layer, 3]
        if layer > 1:
            _fill(weights, layers[layer, 1], scratch, at, columns, rows)
        multiply(scratch, start, width, weights, layers[layer, 0], layers[layer, 2], scratch, at, columns,
                 columns, rows, True)  # fmt: skip
        start, width = at, columns
        at += TILE_ROWS * columns
    output = len(layers) - 1
    for row in range(rows):
        total = _dot(scratch, start + row * width, weights, layers[output, 0], layers[output, 2])
        out[row] += total + weights[layers[output, 1]]
