"""The two kernels of the models that learn from each row before they predict the next.

``learner`` and ``predictor`` compile them for a shape. They are compiled when they are called first, and kept
on disk beside this file (or where numba keeps what it may not write there).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba

from headrace.compiled import cached
from headrace.ctr.kernels.compiling import KERNEL, PART
from headrace.ctr.learning.update_rules import Rule, move
from headrace.ctr.models import ffm, fm, fwfm
from headrace.ctr.models.arguments import FM, FWFM, LR, Shape, Work
from headrace.ctr.models.embeddings import count_values, half_dot, pool, prefetch_rows, update_rows
from headrace.ctr.models.linear import dense_sum, linear_sum, sigmoid, update_dense, update_linear
from headrace.ctr.tables import Table
from headrace.tensors import Array

_AHEAD = 8
"""How many rows ahead the lines of linear weights are asked for."""

_AHEAD_WIDE = 2
"""The same of embeddings, which may be many lines each."""


class Served(NamedTuple):
    """The weights that kernels read, and the learning one changes.

    Attributes:
        linear: The linear table.
        embeddings: The embeddings; for lr the linear table again.
        bias: float32 ``[1, 1]`` or wider.
        dense: The linear weights of dense features: float32 ``[1, dense_width]`` or wider.
        pairs: fwfm's: float32 ``[1, fields * fields]`` or wider, symmetric.
    """

    linear: Table
    embeddings: Table
    bias: Array
    dense: Array
    pairs: Array


class Rules(NamedTuple):
    """How each group of weights moves."""

    bias: Rule
    linear: Rule
    embeddings: Rule


PredictKernel = Callable[[Work, Served, Array], None]
LearnKernel = Callable[[Work, Served, Rules, Array], None]


@numba.njit(**PART)
def _prefetch(shape, work, served, row):  # type: ignore[no-untyped-def]
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + _AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming, values = min(row + _AHEAD_WIDE, last), served.embeddings.values
        prefetch_rows(values, indices, coming, values.shape[1])


@numba.njit(**PART)
def _logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    if not shape.single:
        count_values(shape, work, row)
    logit = served.bias[0, 0] + dense_sum(served.dense, work.rows.dense, row)
    logit += linear_sum(shape, served.linear, work, row)
    if shape.kind != LR:
        pool(shape, served.embeddings, work, row)
        if shape.kind == FM:
            fm.towards(shape, work.room)
        elif shape.kind == FWFM:
            fwfm.towards(shape, work.room, served.pairs)
        else:
            ffm.towards(shape, work.room)
        logit += half_dot(shape, work.room)
    return logit


@numba.njit(**PART)
def _update(shape, work, served, rules, row, error):  # type: ignore[no-untyped-def]
    move(shape.linear_code, rules.bias, served.bias, (0, 1, 0), error)
    update_dense(shape, rules.linear, served.dense, work.rows.dense, row, error)
    update_linear(shape, rules.linear, served.linear.values, work, row, error)
    if shape.kind != LR:
        update_rows(shape, rules.embeddings, served.embeddings.values, work, row, error)
        if shape.kind == FWFM:
            fwfm.update_pairs(shape, rules.embeddings, served.pairs, work.room, error)


@functools.cache
def predictor(shape: Shape) -> PredictKernel:
    """The kernel that writes the logits of rows."""

    @cached(**KERNEL)
    def predict(work, served, logits):  # type: ignore[no-untyped-def]
        for row in range(work.rows.indices.shape[0]):
            _prefetch(shape, work, served, row)
            logits[row] = _logit(shape, work, served, row)

    made: PredictKernel = predict
    return made


@functools.cache
def learner(shape: Shape) -> LearnKernel:
    """The kernel that predicts each row, writes the probability, and learns from it at once."""

    @cached(**KERNEL)
    def learn(work, served, rules, probabilities):  # type: ignore[no-untyped-def]
        labels, weights = work.rows.labels, work.rows.weights
        for row in range(work.rows.indices.shape[0]):
            _prefetch(shape, work, served, row)
            probability = sigmoid(_logit(shape, work, served, row))
            probabilities[row] = probability
            error = probability - labels[row]
            if weights.shape[0]:
                error *= weights[row]
            _update(shape, work, served, rules, row, error)

    made: LearnKernel = learn
    return made
