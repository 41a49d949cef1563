"""The kernel of the models that learn from each row before they predict the next.

The kernel that ``learner`` returns is compiled for a shape on its first call, and cached on disk
(``headrace.jit.kernel_cache``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import KERNEL, PART
from headrace.ctr.learning.forgetting_rate import Watched, watch
from headrace.ctr.learning.row_updates import update_dense, update_embeddings, update_linear, update_pairs
from headrace.ctr.learning.update_rules import FORGETTING_CODES, Rule, bounded, move
from headrace.ctr.models.arguments import FWFM, LR, Served, Shape, Work
from headrace.ctr.models.linear import sigmoid
from headrace.ctr.models.logit import logit, prefetch_coming
from headrace.jit.intrinsics import assume
from headrace.jit.kernel_cache import cached


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
    """Return the kernel that predicts each row, writes the probability, and learns from the row at once.

    Where sums of squares decay, the kernel then updates the measurement of their rate (``pace.watch``).
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
