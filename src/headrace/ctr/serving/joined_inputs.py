"""Requests whose values came joined, as buckets: checked, and turned into rows of all tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.kernels.compiling import kernel
from headrace.ctr.kernels.intrinsics import read, write
from headrace.tensors import Array


class Joined(NamedTuple):
    """The inputs, as the kernel takes them.

    Attributes:
        context: Buckets of the context: uint32 ``[rows, slots]``, 2**32 - 1 for a place without a value.
        candidate: Buckets of the candidates.
        context_dense: Numbers of the context: float32 ``[rows, columns]``.
        candidate_dense: Numbers of the candidates.
    """

    context: Array
    candidate: Array
    context_dense: Array
    candidate_dense: Array


@kernel()
def join(given: Joined, starts: Array, buckets: Array, indices: Array, dense: Array) -> int:
    """Put the context before the candidates; returns the first place with a wrong value, -1 for none.

    Args:
        given: The inputs.
        starts: The first row of each slot's table.
        buckets: How many rows it has.
        indices: Becomes rows of the tables.
        dense: Becomes the dense columns.
    """
    slots, columns = indices.shape[1], dense.shape[1]
    of_context, of_context_dense = given.context.shape[1], given.context_dense.shape[1]
    for row in range(len(indices)):
        at = row * slots
        wrong = _place(given.context, row, starts, buckets, indices, at)
        if wrong < 0 and slots > of_context:
            wrong = _place(
                given.candidate, row, starts[of_context:], buckets[of_context:], indices, at + of_context
            )
            wrong += of_context if wrong >= 0 else 0
        if wrong < 0:
            at = row * columns
            wrong = _copy(given.context_dense, row, dense, at)
            if wrong < 0:
                wrong = _copy(given.candidate_dense, row, dense, at + of_context_dense)
                wrong += of_context_dense if wrong >= 0 else 0
            wrong += slots if wrong >= 0 else 0
        if wrong >= 0:
            return int(row * (slots + columns) + wrong)
    return -1


@kernel()
def _place(given: Array, row: int, starts: Array, buckets: Array, indices: Array, to: int) -> int:
    """Turn a row's buckets into rows of all tables; returns the first that is wrong, or -1."""
    flat, out = given.reshape(-1), indices.reshape(-1)
    count, at, bad = given.shape[1], row * given.shape[1], 0
    for slot in range(count):
        bucket = np.int64(read(flat, at + slot))
        padding = bucket == 2**32 - 1
        bad += bucket >= read(buckets, slot) and not padding
        write(out, to + slot, np.uint32(0 if padding else bucket + read(starts, slot)))
    if bad > 0:
        for slot in range(count):
            bucket = np.int64(read(flat, at + slot))
            if bucket >= read(buckets, slot) and bucket != 2**32 - 1:
                return slot
    return -1


@kernel()
def _copy(given: Array, row: int, dense: Array, to: int) -> int:
    """Copy a row's numbers; returns the first that is not finite, or -1."""
    flat, out = given.reshape(-1), dense.reshape(-1)
    count, at, bad = given.shape[1], row * given.shape[1], 0
    for column in range(count):
        number = read(flat, at + column)
        bad += not np.isfinite(number)
        write(out, to + column, number)
    if bad > 0:
        for column in range(count):
            if not np.isfinite(read(flat, at + column)):
                return column
    return -1
