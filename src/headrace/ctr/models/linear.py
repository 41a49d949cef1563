"""The linear part of every kind, as parts of kernels: fields, interactions and dense features."""

from __future__ import annotations

import math

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.models.embeddings import weight_at
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
