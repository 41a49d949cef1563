"""What the kernels of all kinds share: the layout of slots, a row's pooled embeddings, the update of their rows.

The terms of field pairs of fm, fwfm and ffm have one form: half the sum over the fields of the dot products of
the field's pooled embedding with what it is drawn towards, which is a sum over the other fields' embeddings.
That same vector is the logit's gradient by the pooled embedding. So a kind says only how ``towards`` is made of
``pooled`` (``headrace.ctr.fm``, ``fwfm``, ``ffm``); the rest is here.

Arguments that are constant where a kernel is compiled: ``fields``, ``width`` (of an embedding row), ``single``
(whether every field has one value) and ``scaled`` (whether the table is in 16 or 8 bits).
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.memory import aligned_zeros, prefetch
from headrace.ctr.updates import FAST, move
from headrace.stream.features import Features
from headrace.tensors import Array

FLOATS_PER_LINE = 16

_ZERO, _ONE = np.float32(0), np.float32(1)


class Slots(NamedTuple):
    """The layout of slots, as kernels take it.

    Attributes:
        starts: The first slot of each field, and the number of slots last: int64 ``[fields + 1]``.
        mean: Which fields are pooled by their mean: bool ``[fields]``.
    """

    starts: Array
    mean: Array

    @classmethod
    def of(cls, features: Features) -> Slots:
        """The layout of features."""
        return cls(features.slot_starts, features.mean_pooled)


class Room(NamedTuple):
    """One thread's working memory for one row: float32.

    Attributes:
        shares: What each field's values are multiplied with ``[fields]``; only where fields have many.
        pooled: The fields' embeddings ``[fields * width]``.
        towards: The logit's gradient by each ``[fields * width]``.
        columns: fwfm's embeddings, transposed ``[width * fields]``.
        products: fwfm's dot products of all pairs ``[fields * fields]``.
    """

    shares: Array
    pooled: Array
    towards: Array
    columns: Array
    products: Array

    @classmethod
    def of(cls, fields: int, width: int) -> Room:
        """Make some."""
        sizes = (fields, fields * width, fields * width, fields * width, fields * fields)
        return cls(*(aligned_zeros((size,)) for size in sizes))


@numba.njit(forceinline=True, fastmath=FAST)
def weight_at(table, row, column, scaled):  # type: ignore[no-untyped-def]
    """One weight of a Table: float32."""
    if scaled:
        return np.float32(table.values[row, column]) * table.scales[row >> np.uintp(table.shift)]
    return np.float32(table.values[row, column])


@numba.njit(forceinline=True, fastmath=FAST)
def count_values(indices, row, slots, room, fields):  # type: ignore[no-untyped-def]
    """Find what each field's values are multiplied with: one by their number where they are averaged."""
    for field in range(fields):
        count = 0
        for slot in range(slots.starts[field], slots.starts[field + 1]):
            count += indices[row, slot] != 0
        room.shares[field] = _ONE / np.float32(count) if slots.mean[field] and count > 1 else _ONE


@numba.njit(forceinline=True, fastmath=FAST)
def pool(table, indices, row, slots, room, fields, width, single, scaled):  # type: ignore[no-untyped-def]
    """Fill in ``room.pooled``; row 0 of a table is zero, so that no value adds nothing."""
    for field in range(fields):
        start = field * width
        if single:
            place = np.uintp(indices[row, field])
            for column in range(width):
                room.pooled[start + column] = weight_at(table, place, column, scaled)
        else:
            for column in range(width):
                room.pooled[start + column] = _ZERO
            for slot in range(slots.starts[field], slots.starts[field + 1]):
                place = np.uintp(indices[row, slot])
                for column in range(width):
                    room.pooled[start + column] += room.shares[field] * weight_at(
                        table, place, column, scaled
                    )


@numba.njit(forceinline=True, fastmath=FAST)
def half_dot(room, size):  # type: ignore[no-untyped-def]
    """The terms of all pairs: half of ``pooled`` times ``towards``, because each pair is in it twice."""
    total = _ZERO
    for place in range(size):
        total += room.pooled[place] * room.towards[place]
    return np.float32(0.5) * total


@numba.njit(forceinline=True, fastmath=FAST)
def update_rows(code, values, indices, row, slots, room, error, rule, fields, width, single):  # type: ignore[no-untyped-def]
    """Move every touched row of the embeddings against ``error * towards``; row 0 is never touched."""
    for field in range(fields):
        start = field * width
        if single:
            place = np.uintp(indices[row, field])
            if place != 0:
                for column in range(width):
                    move(code, values, place, width, column, error * room.towards[start + column], rule)
        else:
            share = error * room.shares[field]
            for slot in range(slots.starts[field], slots.starts[field + 1]):
                place = np.uintp(indices[row, slot])
                if place != 0:
                    for column in range(width):
                        move(code, values, place, width, column, share * room.towards[start + column], rule)


@numba.njit(forceinline=True)
def prefetch_rows(values, indices, row, columns):  # type: ignore[no-untyped-def]
    """Ask for every line of the rows of a table that a coming row needs.

    Args:
        values: The table.
        indices: Rows of the table ``[rows, slots]``.
        row: The coming row.
        columns: How many columns of the table are needed.
    """
    for slot in range(indices.shape[1]):
        place = indices[row, slot]
        for column in range(0, columns, FLOATS_PER_LINE):
            prefetch(values, place, column)
