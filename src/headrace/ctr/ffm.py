"""Field-aware factorization machines: a value has an embedding for each other field, ``[fields * factors]``."""

from __future__ import annotations

import numba

from headrace.ctr.updates import FAST


@numba.njit(forceinline=True, fastmath=FAST)
def towards(room, fields, factors):  # type: ignore[no-untyped-def]
    """A field is drawn towards the embeddings that the others have for it; its own for itself stay zero."""
    width = fields * factors
    for field in range(fields):
        for other in range(fields):
            if field != other:
                for factor in range(factors):
                    room.towards[field * width + other * factors + factor] = room.pooled[
                        other * width + field * factors + factor
                    ]
