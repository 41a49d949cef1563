"""The linear part of every kind, as functions for kernels: fields, interactions, dense features, the bias."""

from __future__ import annotations

import math

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.kernels.intrinsics import read
from headrace.ctr.learning.update_rules import move
from headrace.ctr.models.embeddings import weight_at

_ZERO, _ONE = np.float32(0), np.float32(1)


@numba.njit(**PART)
def sigmoid(logit):  # type: ignore[no-untyped-def]
    """The probability of a logit: float32."""
    return _ONE / (_ONE + np.float32(math.exp(-logit)))


@numba.njit(**PART)
def linear_sum(shape, table, work, row):  # type: ignore[no-untyped-def]
    """What the fields and the interactions of a row add to its logit."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    total = _ZERO
    for field in range(shape.fields):
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
    """What the dense features of a row add to its logit; ``weights`` ``[1, at least dense_width]``."""
    total = _ZERO
    for column in range(dense.shape[1]):
        total += read(weights, (0, column)) * read(dense, (row, column))
    return total


@numba.njit(**PART)
def update_linear(shape, rule, values, work, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of a row's values and interactions; row 0 is never touched."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    for field in range(shape.fields):
        if shape.single:
            _update_row(shape, rule, values, read(indices, (row, field)), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _update_row(shape, rule, values, read(indices, (row, slot)), share)
    for number in range(crossed.shape[1]):
        _update_row(shape, rule, values, read(crossed, (row, number)), error)


@numba.njit(**PART)
def _update_row(shape, rule, values, index, error):  # type: ignore[no-untyped-def]
    place = np.uintp(index)
    if place != 0:
        move(shape.linear_code, rule, values, (place, 1, 0), error)


@numba.njit(**PART)
def update_dense(shape, rule, values, dense, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of dense features."""
    width = dense.shape[1]
    for column in range(width):
        move(shape.linear_code, rule, values, (0, width, column), error * read(dense, (row, column)))
