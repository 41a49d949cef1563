"""Field-weighted factorization machines: each pair of fields has a weight that multiplies its dot product.

The weights of pairs are a learning table of one row: ``[fields, fields]``, flattened. A pair's weight is
stored above and below the diagonal, so that a field's weights are adjacent. Both copies move alike.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.jit.intrinsics import one_by_one, read, write

_ZERO = np.float32(0)


@numba.njit(**PART)
def towards(shape, room, pairs):  # type: ignore[no-untyped-def]
    """Write the sum of the other fields' embeddings, times the pairs' weights, to ``towards``.

    The pairs' dot products are left in ``room.products``, with zeros on the diagonal.
    """
    fields, factors = shape.fields, shape.factors
    for field in range(fields):
        one_by_one()
        for factor in range(factors):
            write(room.columns, factor * fields + field, read(room.pooled, field * factors + factor))
    for field in range(fields):
        one_by_one()
        _weigh(shape, room, pairs, field)
        _multiply(shape, room, field)


@numba.njit(**PART)
def _weigh(shape, room, pairs, field):  # type: ignore[no-untyped-def]
    fields, factors = shape.fields, shape.factors
    first = field * factors
    for factor in range(factors):
        write(room.towards, first + factor, _ZERO)
    for other in range(fields):
        one_by_one()
        weight = read(pairs, (0, field * fields + other))
        for factor in range(factors):
            drawn = weight * read(room.pooled, other * factors + factor)
            write(room.towards, first + factor, read(room.towards, first + factor) + drawn)


@numba.njit(**PART)
def _multiply(shape, room, field):  # type: ignore[no-untyped-def]
    fields, factors = shape.fields, shape.factors
    first = field * fields
    for other in range(fields):
        write(room.products, first + other, _ZERO)
    for factor in range(factors):
        one_by_one()
        value = read(room.pooled, field * factors + factor)
        for other in range(fields):
            product = value * read(room.columns, factor * fields + other)
            write(room.products, first + other, read(room.products, first + other) + product)
    write(room.products, first + field, _ZERO)
