"""The distinct rows of the tables that a batch touches, so that an optimizer moves each once.

Rows are numbered in the order in which a batch touches them, and gradients are summed under these numbers. A
row's number is looked up in ``positions``, which is never cleared: an entry is valid only if that number
belongs to the same row in this batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import KERNEL, PART
from headrace.jit.intrinsics import prefetch, read, write
from headrace.jit.kernel_cache import cached

_AHEAD = 4
"""Prefetch distance of positions, in rows of the block."""


class Touched(NamedTuple):
    """The rows that a batch touches.

    Attributes:
        rows: Touched rows: uint32 ``[touched]``; first row 0, which stands for no value and is never learnt,
            then those of the tables, then those of interactions.
        embedded: Number of them that belong to tables, including row 0.
        places: Index in ``rows`` of each value's row: uint32 ``[rows, slots]``.
        crossed: Index in ``rows`` of each interaction's row: uint32 ``[rows, interactions]``.
    """

    rows: Array
    embedded: int
    places: Array
    crossed: Array


class Coalescer:
    """Numbering of the rows that a batch touches; its arrays are reused for the next batch.

    Attributes:
        positions: Candidate for each row's index in ``Touched.rows``: uint32 ``[rows]``.
    """

    def __init__(self, rows: int) -> None:
        """Allocate memory.

        Args:
            rows: Number of rows of the linear table.
        """
        self.positions = np.zeros(rows, np.uint32)
        self._found = np.zeros(1, np.uint32)

    def touched_by(self, indices: Array, crossed: Array) -> Touched:
        """Return the rows that a batch touches; valid until the next call.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``.
            crossed: Rows of the interactions: uint32 ``[rows, interactions]``.
        """
        most = 1 + indices.size + crossed.size
        if len(self._found) < most:
            self._found = np.zeros(most, np.uint32)
        places, crossed_places = np.empty(indices.shape, np.uint32), np.empty(crossed.shape, np.uint32)
        positions = self.positions.reshape(-1, 1)
        embedded = _number(indices, positions, self._found, places, 1)
        count = _number(crossed, positions, self._found, crossed_places, embedded)
        return Touched(self._found[:count], embedded, places, crossed_places)


@cached(**KERNEL)
def _number(indices, positions, found, places, count):  # type: ignore[no-untyped-def]
    """Number the rows that were not touched before; return the total number of touched rows."""
    for row in range(indices.shape[0]):
        coming = min(row + _AHEAD, indices.shape[0] - 1)
        for slot in range(indices.shape[1]):
            prefetch(positions, (np.uintp(read(indices, (coming, slot))), 0))
        for slot in range(indices.shape[1]):
            count = _number_one(indices, positions, found, places, (row, slot, count))
    return count


@numba.njit(**PART)
def _number_one(indices, positions, found, places, which):  # type: ignore[no-untyped-def]
    row, slot, count = which
    index = read(indices, (row, slot))
    place = np.uint32(0)
    if index != 0:
        place = read(positions, (np.uintp(index), 0))
        if place == 0 or place >= count or read(found, np.uintp(place)) != index:
            place = np.uint32(count)
            write(positions, (np.uintp(index), 0), place)
            write(found, count, index)
            count += 1
    write(places, (row, slot), place)
    return count
