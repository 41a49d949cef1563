"""Kernels that check a request's buckets and numbers, and convert them to a model's arrays.

Arrays are passed one by one, because numba unpacks tuples slowly through Python's C API.
"""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import kernel, part
from headrace.jit.intrinsics import read, write

_PADDING = 2**32 - 1


@kernel()
def join(context: Array, candidate: Array, starts: Array, buckets: Array, indices: Array) -> bool:
    """Join the context's rows and the candidates'; return whether all buckets are within their tables.

    Args:
        context: Buckets of the context: uint32 ``[rows, slots]``, 2**32 - 1 for a slot without a value.
        candidate: Buckets of the candidates, likewise.
        starts: First row of each slot's table: int64.
        buckets: Number of rows of each slot's table: int64.
        indices: Output for the rows of the tables: uint32.
    """
    bad = 0
    for row in range(len(indices)):
        bad += _place(context, row, (starts, buckets), indices, 0)
        bad += _place(candidate, row, (starts, buckets), indices, context.shape[1])
    return bad == 0


@part()
def _place(came: Array, row: int, tables: tuple[Array, Array], indices: Array, first: int) -> int:
    """Turn a row's buckets into rows of all tables, from slot ``first`` on; return how many are invalid."""
    starts, buckets = tables
    bad = 0
    for column in range(came.shape[1]):
        bucket, slot = np.int64(read(came, (row, column))), first + column
        padding = bucket == _PADDING
        bad += bucket >= read(buckets, slot) and not padding
        write(indices, (row, slot), np.uint32(0 if padding else bucket + read(starts, slot)))
    return bad


@kernel()
def join_numbers(context: Array, candidate: Array, dense: Array) -> bool:
    """Join the context's numbers and the candidates'; return whether all are finite.

    Args:
        context: Numbers of the context: float32 ``[rows, columns]``.
        candidate: Numbers of the candidates, likewise.
        dense: Output for the dense columns.
    """
    bad = 0
    for row in range(len(dense)):
        bad += _copy(context, row, dense, 0)
        bad += _copy(candidate, row, dense, context.shape[1])
    return bad == 0


@part()
def _copy(came: Array, row: int, dense: Array, first: int) -> int:
    """Copy a row's numbers; return how many are not finite."""
    bad = 0
    for column in range(came.shape[1]):
        number = read(came, (row, column))
        bad += not np.isfinite(number)
        write(dense, (row, first + column), number)
    return bad


@kernel()
def transpose(columns: Array, dense: Array) -> bool:
    """Transpose columns of numbers; return whether all are finite.

    Args:
        columns: float32 ``[columns, rows]``.
        dense: Output: float32 ``[rows, columns]``.
    """
    bad = 0
    for row in range(len(dense)):
        for column in range(dense.shape[1]):
            number = read(columns, (column, row))
            bad += not np.isfinite(number)
            write(dense, (row, column), number)
    return bad == 0
