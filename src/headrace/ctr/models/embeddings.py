"""Embeddings: pooling by field, and the terms of field pairs, for all kinds that have them.

The pair terms of fm, fwfm and ffm share one form: half the sum, over the fields, of the dot product of the
field's pooled embedding with a vector ``towards``, which is made from the other fields' embeddings. This
vector is also the logit's gradient with respect to the pooled embedding. So each kind only defines
``towards`` (``headrace.ctr.models.fm``, ``fwfm``, ``ffm``); the rest is here.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.kernels.memory import LINE_FLOATS
from headrace.jit.intrinsics import one_by_one, prefetch, read, write

_ZERO, _ONE = np.float32(0), np.float32(1)


@numba.njit(**PART)
def weight_at(shape, table, row, column):  # type: ignore[no-untyped-def]
    """Return one weight of a Table: float32."""
    if shape.scaled:
        scale = read(table.scales, row >> np.uintp(table.shift))
        return np.float32(read(table.values, (row, column))) * scale
    return np.float32(read(table.values, (row, column)))


@numba.njit(**PART)
def count_values(shape, work, row):  # type: ignore[no-untyped-def]
    """Compute the factor of each field's values: 1 / count where they are averaged, else 1."""
    starts = work.slots.starts
    for field in range(shape.fields):
        count = 0
        for slot in range(starts[field], starts[field + 1]):
            count += read(work.rows.indices, (row, slot)) != 0
        averaged = work.slots.mean[field] and count > 1
        write(work.room.shares, field, _ONE / np.float32(count) if averaged else _ONE)


@numba.njit(**PART)
def pool(shape, table, work, row):  # type: ignore[no-untyped-def]
    """Fill in ``room.pooled``; row 0 is zero, so an empty slot adds nothing."""
    indices, pooled, starts = work.rows.indices, work.room.pooled, work.slots.starts
    for field in range(shape.fields):
        one_by_one()
        first = field * shape.width
        if shape.single:
            place = np.uintp(read(indices, (row, field)))
            for column in range(shape.width):
                write(pooled, first + column, weight_at(shape, table, place, column))
        else:
            for column in range(shape.width):
                write(pooled, first + column, _ZERO)
            for slot in range(starts[field], starts[field + 1]):
                place, share = np.uintp(read(indices, (row, slot))), read(work.room.shares, field)
                for column in range(shape.width):
                    weight = weight_at(shape, table, place, column)
                    write(pooled, first + column, read(pooled, first + column) + share * weight)


@numba.njit(**PART)
def half_dot(shape, room):  # type: ignore[no-untyped-def]
    """Return the sum of all pair terms: half of ``pooled`` times ``towards``, which has each pair twice."""
    total = _ZERO
    for place in range(shape.fields * shape.width):
        total += read(room.pooled, place) * read(room.towards, place)
    return np.float32(0.5) * total


@numba.njit(**PART)
def prefetch_rows(values, indices, row, columns):  # type: ignore[no-untyped-def]
    """Prefetch the cache lines of the table rows that a later row needs.

    Args:
        values: The table.
        indices: Rows of the table ``[rows, slots]``.
        row: The later row.
        columns: Number of columns of the table to prefetch.
    """
    for slot in range(indices.shape[1]):
        place = read(indices, (row, slot))
        for column in range(0, columns, LINE_FLOATS):
            prefetch(values, (place, column))
