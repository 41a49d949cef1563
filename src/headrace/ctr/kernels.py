"""The two kernels of the models that learn from each row before they predict the next.

``learner`` and ``predictor`` compile them for a shape: what kind, how many fields and factors, which
optimizers are constants in the machine code, so that loops over factors become vectors. They are compiled when
they are called first, and kept on disk beside this file (or where numba keeps what it may not write there).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr import ffm, fm, fwfm
from headrace.ctr.linear import dense_sum, linear_sum, sigmoid, update_dense, update_linear
from headrace.ctr.pooling import (
    Room,
    Slots,
    count_values,
    half_dot,
    pool,
    prefetch_rows,
    update_rows,
)
from headrace.ctr.tables import Table
from headrace.ctr.updates import FAST, Rule, move
from headrace.tensors import Array

LR, FM, FWFM, FFM = range(4)
"""The codes of kinds."""

KIND_CODES = {"lr": LR, "fm": FM, "fwfm": FWFM, "ffm": FFM}

_ONE = np.float32(1)


class Shape(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        kind: The kind's code.
        fields: How many categorical fields there are.
        factors: How many numbers an embedding has.
        single: Whether every field has one value.
    """

    kind: int
    fields: int
    factors: int
    single: bool

    @property
    def width(self) -> int:
        """How many numbers a row of the embeddings has."""
        return self.factors * (self.fields if self.kind == FFM else 1)


class Rows(NamedTuple):
    """The rows of a block, as kernels take them.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        crossed: Rows of the interactions: uint32 ``[rows, interactions]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
    """

    indices: Array
    crossed: Array
    dense: Array


class Served(NamedTuple):
    """Weights for predictions.

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


class Facts(NamedTuple):
    """What is known of the rows that are learnt from: labels, and weights (none: one each)."""

    labels: Array
    weights: Array


PredictKernel = Callable[[Rows, Served, Slots, Room, Array], None]
LearnKernel = Callable[[tuple[Rows, Facts], Served, Rules, Slots, Room, Array], None]


@functools.cache
def predictor(shape: Shape, scaled: bool) -> PredictKernel:
    """The kernel that writes the logits of rows.

    Args:
        shape: What it is compiled for.
        scaled: Whether the tables are in 16 or 8 bits.
    """
    kind, fields, factors, single = shape
    width = shape.width

    @numba.njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
    def predict(rows, served, slots, room, logits):  # type: ignore[no-untyped-def]
        indices, crossed, dense = rows.indices, rows.crossed, rows.dense
        last = indices.shape[0] - 1
        for row in range(indices.shape[0]):
            prefetch_rows(served.linear.values, indices, min(row + 4, last), 1)
            if kind != LR:
                prefetch_rows(served.embeddings.values, indices, min(row + 2, last), width)
            if not single:
                count_values(indices, row, slots, room, fields)
            logit = served.bias[0, 0] + dense_sum(served.dense, dense, row)
            logit += linear_sum(served.linear, indices, crossed, row, slots, room, fields, single, scaled)
            if kind != LR:
                pool(served.embeddings, indices, row, slots, room, fields, width, single, scaled)
                if kind == FM:
                    fm.towards(room, fields, factors)
                elif kind == FWFM:
                    fwfm.towards(room, served.pairs, fields, factors)
                else:
                    ffm.towards(room, fields, factors)
                logit += half_dot(room, fields * width)
            logits[row] = logit

    return predict  # type: ignore[no-any-return]


@functools.cache
def learner(shape: Shape, linear_code: int, embedding_code: int, ahead: int = 4) -> LearnKernel:
    """The kernel that predicts each row, writes the probability, and learns from it at once.

    Args:
        shape: What it is compiled for.
        linear_code: The rule of linear weights.
        embedding_code: The rule of embeddings.
        ahead: How many rows ahead the tables' rows are asked for.
    """
    kind, fields, factors, single = shape
    width = shape.width

    @numba.njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
    def learn(given, served, rules, slots, room, probabilities):  # type: ignore[no-untyped-def]
        indices, crossed, dense = given[0].indices, given[0].crossed, given[0].dense
        facts = given[1]
        linear, embeddings = served.linear.values, served.embeddings.values
        last = indices.shape[0] - 1
        for row in range(indices.shape[0]):
            coming = min(row + ahead, last)
            prefetch_rows(linear, indices, coming, 1)
            prefetch_rows(linear, crossed, coming, 1)
            if kind != LR:
                prefetch_rows(embeddings, indices, coming, embeddings.shape[1])
            if not single:
                count_values(indices, row, slots, room, fields)
            logit = served.bias[0, 0] + dense_sum(served.dense, dense, row)
            logit += linear_sum(served.linear, indices, crossed, row, slots, room, fields, single, False)
            if kind != LR:
                pool(served.embeddings, indices, row, slots, room, fields, width, single, False)
                if kind == FM:
                    fm.towards(room, fields, factors)
                elif kind == FWFM:
                    fwfm.towards(room, served.pairs, fields, factors)
                else:
                    ffm.towards(room, fields, factors)
                logit += half_dot(room, fields * width)
            probability = sigmoid(logit)
            probabilities[row] = probability
            error = probability - facts.labels[row]
            if facts.weights.shape[0]:
                error *= facts.weights[row]
            move(linear_code, served.bias, 0, 1, 0, error, rules.bias)
            update_dense(linear_code, served.dense, dense, row, error, rules.linear)
            update_linear(
                linear_code, linear, indices, crossed, row, slots, room, error, rules.linear, fields, single
            )
            if kind != LR:
                update_rows(
                    embedding_code,
                    *(embeddings, indices, row, slots, room, error),
                    *(rules.embeddings, fields, width, single),
                )
                if kind == FWFM:
                    fwfm.update_pairs(
                        embedding_code, served.pairs, room, error, rules.embeddings, fields
                    )

    return learn  # type: ignore[no-any-return]
