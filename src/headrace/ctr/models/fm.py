"""Factorization machines: the embeddings of two different fields interact by their dot product."""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.jit.intrinsics import one_by_one, read, write

_ZERO = np.float32(0)


@numba.njit(**PART)
def towards(shape, room):  # type: ignore[no-untyped-def]
    """Write the sum of the other fields' embeddings to ``towards``, for each field."""
    factors = shape.factors
    for factor in range(factors):
        write(room.columns, factor, _ZERO)
    for field in range(shape.fields):
        one_by_one()
        for factor in range(factors):
            total = read(room.columns, factor) + read(room.pooled, field * factors + factor)
            write(room.columns, factor, total)
    for field in range(shape.fields):
        one_by_one()
        for factor in range(factors):
            place = field * factors + factor
            write(room.towards, place, read(room.columns, factor) - read(room.pooled, place))
