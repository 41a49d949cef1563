"""Field-aware factorization machines: a value has an embedding for each other field, stored in one row."""

from __future__ import annotations

import numba

from headrace.ctr.kernels.compiling import PART
from headrace.jit.intrinsics import one_by_one, read, write


@numba.njit(**PART)
def towards(shape, room):  # type: ignore[no-untyped-def]
    """Write the other fields' embeddings for each field to ``towards``; the block for itself stays zero."""
    fields, factors, width = shape.fields, shape.factors, shape.width
    for field in range(fields):
        for other in range(fields):
            one_by_one()
            if field != other:
                here, there = field * width + other * factors, other * width + field * factors
                for factor in range(factors):
                    write(room.towards, here + factor, read(room.pooled, there + factor))
