"""Factorization machines: the embeddings of two different fields interact by their dot product."""

from __future__ import annotations

import numba

from headrace.ctr.updates import FAST


@numba.njit(forceinline=True, fastmath=FAST)
def towards(shape, room):  # type: ignore[no-untyped-def]
    """A field is drawn towards the sum of the other fields' embeddings."""
    fields, factors = shape.fields, shape.factors
    for factor in range(factors):
        total = room.pooled[factor]
        for field in range(1, fields):
            total += room.pooled[field * factors + factor]
        for field in range(fields):
            place = field * factors + factor
            room.towards[place] = total - room.pooled[place]
