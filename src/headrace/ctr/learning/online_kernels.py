"""The kernel of the models that learn from each row before they predict the next.

The kernel that ``learner`` returns is compiled for a shape on its first call, and cached on disk
(``headrace.jit.kernel_cache``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import KERNEL, PART
from headrace.ctr.learning.forgetting_rate import Watched, watch
from headrace.ctr.learning.update_rules import FORGETTING_CODES, Rule, bounded, move
from headrace.ctr.models.arguments import FWFM, LR, Served, Shape, Work
from headrace.ctr.models.linear import sigmoid
from headrace.ctr.models.logit import logit, prefetch_coming
from headrace.jit.intrinsics import assume, one_by_one, read
from headrace.jit.kernel_cache import cached

# Updates of the weights that one row touched: linear weights, embeddings, and fwfm's weights of pairs.
#
# These are parts of the online learning kernel; `update_rules` has the update of a single weight.


@numba.njit(**PART)
def update_linear(shape, rule, values, work, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of a row's values and interactions; row 0 is never touched."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    for field in range(shape.fields):
        if shape.single:
            _update_weight(shape, rule, values, read(indices, (row, field)), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _update_weight(shape, rule, values, read(indices, (row, slot)), share)
    for number in range(crossed.shape[1]):
        _update_weight(shape, rule, values, read(crossed, (row, number)), error)


@numba.njit(**PART)
def _update_weight(shape, rule, values, index, error):  # type: ignore[no-untyped-def]
    place = np.uintp(index)
    if place != 0:
        move(shape.linear_code, rule, values, (place, 1, 0), error)


@numba.njit(**PART)
def update_dense(shape, rule, values, dense, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of dense features."""
    width = dense.shape[1]
    for column in range(width):
        gradient = bounded(shape.linear_code, error * read(dense, (row, column)))
        move(shape.linear_code, rule, values, (0, width, column), gradient)


@numba.njit(**PART)
def update_embeddings(shape, rule, values, work, row, error):  # type: ignore[no-untyped-def]
    """Move every touched row of the embeddings against ``error * towards``; row 0 is never touched."""
    indices, starts, towards = work.rows.indices, work.slots.starts, work.room.towards
    for field in range(shape.fields):
        one_by_one()
        if shape.single:
            _update_row(shape, rule, values, towards, (read(indices, (row, field)), field), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _update_row(shape, rule, values, towards, (read(indices, (row, slot)), field), share)


@numba.njit(**PART)
def _update_row(shape, rule, values, towards, which, error):  # type: ignore[no-untyped-def]
    place, first = np.uintp(which[0]), which[1] * shape.width
    if place != 0:
        for column in range(shape.width):
            gradient = error * read(towards, first + column)
            move(shape.embedding_code, rule, values, (place, shape.width, column), gradient)


@numba.njit(**PART)
def update_pairs(shape, rule, pairs, room, error):  # type: ignore[no-untyped-def]
    """Move the weights of all pairs; those of a field with itself stay zero."""
    size = shape.fields * shape.fields
    for place in range(size):
        move(shape.embedding_code, rule, pairs, (0, size, place), error * read(room.products, place))


class Rules(NamedTuple):
    """Update rules of the groups of weights."""

    bias: Rule
    linear: Rule
    embeddings: Rule
    pairs: Rule


LearnKernel = Callable[[Work, Served, Rules, Array, Watched], None]


@numba.njit(**PART)
def _update(shape, work, served, rules, row, error):  # type: ignore[no-untyped-def]
    move(shape.linear_code, rules.bias, served.bias, (0, 1, 0), error)
    update_dense(shape, rules.linear, served.dense, work.rows.dense, row, error)
    update_linear(shape, rules.linear, served.linear.values, work, row, error)
    if shape.kind != LR:
        update_embeddings(shape, rules.embeddings, served.embeddings.values, work, row, error)
        if shape.kind == FWFM:
            update_pairs(shape, rules.pairs, served.pairs, work.room, error)


@functools.cache
def learner(shape: Shape) -> LearnKernel:
    """Return the kernel that predicts each row, and learns from it before it predicts the next.

    Where sums of squares decay, the kernel then gathers evidence on the rate (``forgetting_rate.watch``).
    """

    @cached(**KERNEL)
    def learn(work, served, rules, probabilities, watched):  # type: ignore[no-untyped-def]
        labels, weights = work.rows.labels, work.rows.weights
        # Inline, because LLVM ignores the assumptions in a function of their own.
        assume(work.rows.indices.shape[1] == shape.slots)
        assume(work.rows.crossed.shape[1] == shape.crossed)
        assume(work.rows.dense.shape[1] == shape.dense)
        assume(served.linear.values.shape[1] == shape.linear_width)
        for row in range(work.rows.indices.shape[0]):
            prefetch_coming(shape, work, served, row)
            probability = sigmoid(logit(shape, work, served, row))
            probabilities[row] = probability
            error = probability - labels[row]
            if weights.shape[0]:
                error = bounded(shape.embedding_code, bounded(shape.linear_code, error * weights[row]))
            _update(shape, work, served, rules, row, error)
        if shape.linear_code in FORGETTING_CODES:
            watch(shape, rules.linear, work.rows, probabilities, watched)
        elif shape.embedding_code in FORGETTING_CODES:
            watch(shape, rules.embeddings, work.rows, probabilities, watched)

    made: LearnKernel = learn
    return made
