"""The logit of one row in lr, fm, fwfm and ffm: the linear part and the pair terms.

The linear part (fields, interactions and dense features) is that of every kind. Online learning and
``headrace.ctr.serving.scoring`` use the logit. Learning in batches has its own, made of the same parts.
Serving has another implementation of the same sums, for many candidates at once:
``headrace.ctr.serving.context``.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.models.factorization_machines import (
    count_values,
    half_dot,
    pool,
    prefetch_rows,
    towards_ffm,
    towards_fm,
    towards_fwfm,
    weight_at,
)
from headrace.ctr.models.model_arrays import FM, FWFM, LR
from headrace.jit.intrinsics import one_by_one, read

_ZERO, _ONE = np.float32(0), np.float32(1)


@numba.njit(**PART)
def sigmoid(logit):  # type: ignore[no-untyped-def]
    """Return the probability of a logit: float32."""
    return _ONE / (_ONE + np.float32(math.exp(-logit)))


@numba.njit(**PART)
def linear_sum(shape, table, work, row):  # type: ignore[no-untyped-def]
    """Return the contribution of a row's fields and interactions to its logit."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    total = _ZERO
    for field in range(shape.fields):
        one_by_one()
        if shape.single:
            total += weight_at(shape, table, np.uintp(read(indices, (row, field))), 0)
        else:
            for slot in range(starts[field], starts[field + 1]):
                weight = weight_at(shape, table, np.uintp(read(indices, (row, slot))), 0)
                total += read(work.room.shares, field) * weight
    for number in range(crossed.shape[1]):
        total += weight_at(shape, table, np.uintp(read(crossed, (row, number))), 0)
    return total


@numba.njit(**PART)
def dense_sum(weights, dense, row):  # type: ignore[no-untyped-def]
    """Return the contribution of a row's dense features; ``weights`` is ``[1, at least dense_width]``."""
    total = _ZERO
    for column in range(dense.shape[1]):
        total += read(weights, (0, column)) * read(dense, (row, column))
    return total


AHEAD = 8
"""Prefetch distance of linear weights, in rows."""

AHEAD_WIDE = 2
"""Prefetch distance of embeddings, in rows; each may span many cache lines."""


@numba.njit(**PART)
def prefetch_coming(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Prefetch the table rows that a later row needs, with their optimizer's state."""
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming, values = min(row + AHEAD_WIDE, last), served.embeddings.values
        prefetch_rows(values, indices, coming, values.shape[1])


@numba.njit(**PART)
def logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Return the logit of a row; leave its intermediate results in ``work.room``."""
    if not shape.single:
        count_values(shape, work, row)
    total = served.bias[0, 0] + dense_sum(served.dense, work.rows.dense, row)
    total += linear_sum(shape, served.linear, work, row)
    if shape.kind != LR:
        pool(shape, served.embeddings, work, row)
        if shape.kind == FM:
            towards_fm(shape, work.room)
        elif shape.kind == FWFM:
            towards_fwfm(shape, work.room, served.pairs)
        else:
            towards_ffm(shape, work.room)
        total += half_dot(shape, work.room)
    return total
