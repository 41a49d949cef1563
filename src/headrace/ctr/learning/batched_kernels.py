"""The kernels of learning in batches: from table rows to logits, and from errors to gradients of table rows.

Rows are processed one at a time, with the same parts as in online learning. Kinds without a network need one
pass: ``learner`` predicts a row and adds its gradients to those of the batch. Kinds with a network need two
passes, with the network's products in between: ``forward`` writes the network's inputs, and ``backward``
takes their gradients. The output layer of a mixture density network has kernels of its own (``DensityHead``).

Gradients of a table's row are summed at the row's number among those that the batch touches (see
``optimizers.Coalescer``). Number 0 collects the gradients of empty slots, which are discarded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.learning.network import CHUNK_ROWS, Exchange, NetworkPass
from headrace.ctr.models.density import heads_of, learn_heads, scratch_of
from headrace.ctr.models.factorization_machines import (
    AHEAD,
    AHEAD_WIDE,
    add_network,
    count_values,
    dense_sum,
    half_dot,
    linear_sum,
    pool,
    prefetch_rows,
    read_pooled,
    sigmoid,
    towards_ffm,
    towards_fm,
    towards_fwfm,
    weigh_products,
    write_products,
)
from headrace.ctr.models.model_arrays import FM, FWFM, LR, Served, Shape, Work
from headrace.jit.intrinsics import one_by_one, prefetch, read, write
from headrace.jit.kernel_cache import KERNEL, PART, cached


class Gathered(NamedTuple):
    """The gradients of a batch, as sums over its rows: float32.

    Attributes:
        places: Number of each value's table row, as in Touched: uint32 ``[rows, slots]``.
        crossed: Number of each interaction's table row, likewise: uint32 ``[rows, interactions]``.
        linear: ``[touched, 1]``.
        embeddings: ``[touched, width]``.
        bias: ``[1]``.
        dense: ``[dense_width]``.
        pairs: fwfm's weights of pairs: ``[fields * fields]``.
    """

    places: Array
    crossed: Array
    linear: Array
    embeddings: Array
    bias: Array
    dense: Array
    pairs: Array


LearnKernel = Callable[[Work, Served, Gathered, Array], None]
NetworkKernel = Callable[[Work, Served, Exchange], None]
BackwardKernel = Callable[[Work, Served, Exchange, Gathered], None]


@numba.njit(**PART)
def _prefetch(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Prefetch as ``prefetch_coming`` does, without the optimizer's state, which is not used yet."""
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming = min(row + AHEAD_WIDE, last)
        prefetch_rows(served.embeddings.values, indices, coming, shape.width)


@numba.njit(**PART)
def _towards(shape, work, served):  # type: ignore[no-untyped-def]
    if shape.kind == FM:
        towards_fm(shape, work.room)
    elif shape.kind == FWFM:
        towards_fwfm(shape, work.room, served.pairs)
    elif shape.kind != LR:
        towards_ffm(shape, work.room)


@numba.njit(**PART)
def _logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Return a row's logit, as ``logit`` does for all columns; sharing would change the machine code."""
    if not shape.single:
        count_values(shape, work, row)
    logit = read(served.bias, (0, 0)) + dense_sum(served.dense, work.rows.dense, row)
    logit += linear_sum(shape, served.linear, work, row)
    if shape.kind != LR:
        pool(shape, served.embeddings, work, row)
        _towards(shape, work, served)
        logit += half_dot(shape, work.room)
    return logit


@numba.njit(**PART)
def _add(array, place, value):  # type: ignore[no-untyped-def]
    write(array, place, read(array, place) + value)


@numba.njit(**PART)
def _add_linear(shape, work, gathered, row, error):  # type: ignore[no-untyped-def]
    starts = work.slots.starts
    _add(gathered.bias, 0, error)
    for column in range(gathered.dense.shape[0]):
        _add(gathered.dense, column, error * read(work.rows.dense, (row, column)))
    for field in range(shape.fields):
        if shape.single:
            _add(gathered.linear, (np.uintp(read(gathered.places, (row, field))), 0), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _add(gathered.linear, (np.uintp(read(gathered.places, (row, slot))), 0), share)
    for number in range(gathered.crossed.shape[1]):
        _add(gathered.linear, (np.uintp(read(gathered.crossed, (row, number))), 0), error)


@numba.njit(**PART)
def _add_rows(shape, work, gathered, row, error):  # type: ignore[no-untyped-def]
    """Add ``error * towards`` to the gradients of the rows of the embeddings."""
    starts, towards = work.slots.starts, work.room.towards
    for field in range(shape.fields):
        one_by_one()
        first = field * shape.width
        if shape.single:
            place = np.uintp(read(gathered.places, (row, field)))
            for column in range(shape.width):
                _add(gathered.embeddings, (place, column), error * read(towards, first + column))
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                place = np.uintp(read(gathered.places, (row, slot)))
                for column in range(shape.width):
                    _add(gathered.embeddings, (place, column), share * read(towards, first + column))


@numba.njit(**PART)
def _prefetch_gradients(shape, gathered, row):  # type: ignore[no-untyped-def]
    coming = min(row + AHEAD_WIDE, gathered.places.shape[0] - 1)
    for slot in range(gathered.places.shape[1]):
        place = np.uintp(read(gathered.places, (coming, slot)))
        for column in range(0, shape.width, 16):
            prefetch(gathered.embeddings, (place, column))


@functools.cache
def learner(shape: Shape) -> LearnKernel:
    """Return the kernel of kinds without a network, which writes probabilities and adds to gradients."""

    @cached(**KERNEL)
    def gather(work, served, gathered, probabilities):  # type: ignore[no-untyped-def]
        labels, weights = work.rows.labels, work.rows.weights
        for row in range(work.rows.indices.shape[0]):
            _prefetch(shape, work, served, row)
            probability = sigmoid(_logit(shape, work, served, row))
            write(probabilities, row, probability)
            error = probability - read(labels, row)
            if weights.shape[0]:
                error *= read(weights, row)
            _add_linear(shape, work, gathered, row, error)
            if shape.kind != LR:
                _add_rows(shape, work, gathered, row, error)
            if shape.kind == FWFM:
                for place in range(shape.fields * shape.fields):
                    _add(gathered.pairs, place, error * read(work.room.products, place))

    made: LearnKernel = gather
    return made


@functools.cache
def forward(shape: Shape) -> NetworkKernel:
    """Return the kernel before a network, which writes the network's inputs and the logits of the rest."""

    @cached(**KERNEL)
    def before(work, served, network):  # type: ignore[no-untyped-def]
        inputs, dense, pooled = network.inputs, work.rows.dense, work.room.pooled
        pairs = shape.fields * (shape.fields - 1) // 2
        first = shape.fields * shape.width if shape.kind == FM else pairs
        if dense.shape[1]:
            first = read(network.columns, first)
        for row in range(work.rows.indices.shape[0]):
            _prefetch(shape, work, served, row)
            write(network.logits, row, _logit(shape, work, served, row))
            if shape.kind == FM:
                for field in range(shape.fields):
                    one_by_one()
                    place, column = field * shape.width, read(network.columns, field * shape.width)
                    for factor in range(shape.width):
                        write(inputs, (row, column + factor), read(pooled, place + factor))
            else:
                write_products(shape, work.room, inputs, row)
            for column in range(dense.shape[1]):
                write(inputs, (row, first + column), read(dense, (row, column)))

    made: NetworkKernel = before
    return made


@functools.cache
def backward(shape: Shape) -> BackwardKernel:
    """Return the kernel after a network, which adds to the gradients of all weights outside the network."""

    @cached(**KERNEL)
    def after(work, served, network, gathered):  # type: ignore[no-untyped-def]
        for row in range(work.rows.indices.shape[0]):
            _prefetch_gradients(shape, gathered, row)
            error = read(network.errors, row)
            if not shape.single:
                count_values(shape, work, row)
            _add_linear(shape, work, gathered, row, error)
            if shape.kind == FM:
                read_pooled(shape, work.room, network, row)
                _towards(shape, work, served)
                add_network(shape, work.room, network, (row, error))
            else:
                _prefetch(shape, work, served, row)
                pool(shape, served.embeddings, work, row)
                _towards(shape, work, served)
                weigh_products(shape, work.room, network.gradients, (row, error))
            _add_rows(shape, work, gathered, row, np.float32(1))

    made: BackwardKernel = after
    return made


class Counts(NamedTuple):
    """Observations of rows: float32 ``[rows]`` each.

    Attributes:
        clicks: Number of clicks.
        views: Number of views.
        weights: Weights of the rows; empty for 1 each.
    """

    clicks: Array
    views: Array
    weights: Array


class DensityHead:
    """One thread's memory for the heads of a chunk of rows, and their gradients."""

    def __init__(self, components: int) -> None:
        """Allocate memory.

        Args:
            components: Number of Beta distributions in the mixture.
        """
        self._heads = np.zeros((CHUNK_ROWS, heads_of(components)), np.float32)
        self._gradients = np.zeros_like(self._heads)
        self._scratch = scratch_of(components)

    def finish(self, network_pass: NetworkPass, counts: Counts, means: Array) -> None:
        """Predict rows, and compute the errors and the gradients of the output and last hidden layer.

        Args:
            network_pass: The pass through the network, after its ``forward``.
            counts: Observations of the rows.
            means: Output for the mean rates: float32 ``[rows]``.
        """
        heads, gradients = self._heads[: len(means)], self._gradients[: len(means)]
        (weights, bias), exchange = network_pass.output, network_pass.exchange
        _forward(network_pass.last[0], weights, bias, exchange.logits, heads)
        learn_heads(heads, tuple(counts), self._scratch, gradients, means)
        sums = network_pass.weights[-1], network_pass.biases[-1]
        _backward(network_pass.last, weights, sums, exchange.errors, gradients)


@cached(**KERNEL)
def _forward(active, weights, bias, logits, heads):  # type: ignore[no-untyped-def]
    count = heads.shape[1]
    units = weights.shape[0] // count
    for row in range(heads.shape[0]):
        one_by_one()
        for head in range(count):
            write(heads, (row, head), read(bias, head))
        for unit in range(units):
            value = read(active, (row, unit))
            for head in range(count):
                sum_ = read(heads, (row, head)) + value * read(weights, unit * count + head)
                write(heads, (row, head), sum_)
        write(heads, (row, 0), read(heads, (row, 0)) + read(logits, row))


@cached(**KERNEL)
def _backward(last, weights, sums, errors, gradients):  # type: ignore[no-untyped-def]
    (active, towards, hidden_bias), (weight_sums, bias_sums) = last, sums
    count = gradients.shape[1]
    units = weights.shape[0] // count
    for row in range(gradients.shape[0]):
        one_by_one()
        write(errors, row, read(gradients, (row, 0)))
        for head in range(count):
            write(bias_sums, head, read(bias_sums, head) + read(gradients, (row, head)))
        for unit in range(units):
            value, gradient = read(active, (row, unit)), np.float32(0)
            for head in range(count):
                error = read(gradients, (row, head))
                gradient += error * read(weights, unit * count + head)
                write(weight_sums, (unit, head), read(weight_sums, (unit, head)) + error * value)
            gradient = gradient if value > 0 else np.float32(0)
            write(towards, (row, unit), gradient)
            write(hidden_bias, unit, read(hidden_bias, unit) + gradient)
