"""Field-weighted factorization machines: each pair of fields has a weight, which its dot product is times.

The pairs' weights lie in a learning table of one row, as ``[fields, fields]``; those of a pair are there
twice, above and below the diagonal, and move alike, so that a field's weights lie side by side.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.updates import FAST, move

_ZERO = np.float32(0)


@numba.njit(forceinline=True, fastmath=FAST)
def towards(shape, room, pairs):  # type: ignore[no-untyped-def]
    """A field is drawn towards the other fields' embeddings, each times the pair's weight.

    The pairs' dot products are left in ``room.products``, on the diagonal zeros.
    """
    fields, factors = shape.fields, shape.factors
    for field in range(fields):
        for factor in range(factors):
            room.columns[factor * fields + field] = room.pooled[field * factors + factor]
    for field in range(fields):
        for factor in range(factors):
            room.towards[field * factors + factor] = _ZERO
        for other in range(fields):
            room.products[field * fields + other] = _ZERO
        for factor in range(factors):
            value = room.pooled[field * factors + factor]
            for other in range(fields):
                room.products[field * fields + other] += value * room.columns[factor * fields + other]
        room.products[field * fields + field] = _ZERO
        for other in range(fields):
            weight = pairs[0, field * fields + other]
            for factor in range(factors):
                room.towards[field * factors + factor] += weight * room.pooled[other * factors + factor]


@numba.njit(forceinline=True, fastmath=FAST)
def update_pairs(shape, rule, pairs, room, error):  # type: ignore[no-untyped-def]
    """Move the weights of all pairs; those of a field with itself are zero and stay so."""
    size = shape.fields * shape.fields
    for place in range(size):
        move(shape.embedding_code, rule, pairs, (0, size, place), error * room.products[place])
