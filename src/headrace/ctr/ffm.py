"""Field-aware factorization machines: a value has an embedding for each other field, side by side."""

from __future__ import annotations

import numba

from headrace.ctr.updates import FAST


@numba.njit(forceinline=True, fastmath=FAST)
def towards(shape, room):  # type: ignore[no-untyped-def]
    """A field is drawn towards the embeddings that the others have for it; its own for itself stay zero."""
    fields, factors, width = shape.fields, shape.factors, shape.width
    for field in range(fields):
        for other in range(fields):
            if field != other:
                for factor in range(factors):
                    room.towards[field * width + other * factors + factor] = room.pooled[
                        other * width + field * factors + factor
                    ]
