"""Updates of the weights that one row touched: linear weights, embeddings, and fwfm's weights of pairs.

These are parts of the online learning kernel; ``update_rules`` has the update of a single weight.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.learning.update_rules import bounded, move
from headrace.jit.intrinsics import one_by_one, read


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
