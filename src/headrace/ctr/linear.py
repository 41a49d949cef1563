"""The linear part of every kind, as functions for kernels: fields, interactions, dense features, the bias."""

from __future__ import annotations

import math

import numba
import numpy as np

from headrace.ctr.pooling import weight_at
from headrace.ctr.updates import FAST, move

_ZERO, _ONE = np.float32(0), np.float32(1)


@numba.njit(forceinline=True, fastmath=FAST)
def sigmoid(logit):  # type: ignore[no-untyped-def]
    """The probability of a logit: float32."""
    return _ONE / (_ONE + np.float32(math.exp(-logit)))


@numba.njit(forceinline=True, fastmath=FAST)
def linear_sum(table, indices, crossed, row, slots, room, fields, single, scaled):  # type: ignore[no-untyped-def]
    """What the fields and the interactions of a row add to its logit."""
    total = _ZERO
    for field in range(fields):
        if single:
            total += weight_at(table, np.uintp(indices[row, field]), 0, scaled)
        else:
            for slot in range(slots.starts[field], slots.starts[field + 1]):
                total += room.shares[field] * weight_at(table, np.uintp(indices[row, slot]), 0, scaled)
    for number in range(crossed.shape[1]):
        total += weight_at(table, np.uintp(crossed[row, number]), 0, scaled)
    return total


@numba.njit(forceinline=True, fastmath=FAST)
def dense_sum(weights, dense, row):  # type: ignore[no-untyped-def]
    """What the dense features of a row add to its logit; ``weights`` ``[1, at least dense_width]``."""
    total = _ZERO
    for column in range(dense.shape[1]):
        total += weights[0, column] * dense[row, column]
    return total


@numba.njit(forceinline=True, fastmath=FAST)
def update_linear(code, values, indices, crossed, row, slots, room, error, rule, fields, single):  # type: ignore[no-untyped-def]
    """Move the linear weights of a row's values and interactions; row 0 is never touched."""
    for field in range(fields):
        if single:
            place = np.uintp(indices[row, field])
            if place != 0:
                move(code, values, place, 1, 0, error, rule)
        else:
            for slot in range(slots.starts[field], slots.starts[field + 1]):
                place = np.uintp(indices[row, slot])
                if place != 0:
                    move(code, values, place, 1, 0, error * room.shares[field], rule)
    for number in range(crossed.shape[1]):
        place = np.uintp(crossed[row, number])
        if place != 0:
            move(code, values, place, 1, 0, error, rule)


@numba.njit(forceinline=True, fastmath=FAST)
def update_dense(code, values, dense, row, error, rule):  # type: ignore[no-untyped-def]
    """Move the linear weights of dense features."""
    width = dense.shape[1]
    for column in range(width):
        move(code, values, 0, width, column, error * dense[row, column], rule)
