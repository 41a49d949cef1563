"""One row's logit by lr, fm, fwfm and ffm: the linear part, and half of what fields are drawn towards.

What learns online goes through here, and so does ``headrace.ctr.serving.scoring``. What learns in batches has
a logit of its own of the same parts; what answers requests has another implementation of the same sums, for
many candidates at once: ``headrace.ctr.serving.context``.
"""

from __future__ import annotations

import numba

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.models import ffm, fm, fwfm
from headrace.ctr.models.arguments import FM, FWFM, LR
from headrace.ctr.models.embeddings import count_values, half_dot, pool, prefetch_rows
from headrace.ctr.models.linear import dense_sum, linear_sum

AHEAD = 8
"""How many rows ahead the lines of linear weights are asked for."""

AHEAD_WIDE = 2
"""The same of embeddings, which may be many lines each."""


@numba.njit(**PART)
def prefetch_coming(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Ask for the rows of the tables that a coming row needs, with their optimizer's numbers."""
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming, values = min(row + AHEAD_WIDE, last), served.embeddings.values
        prefetch_rows(values, indices, coming, values.shape[1])


@numba.njit(**PART)
def logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    """The logit of a row; what it was made of is left in ``work.room``."""
    if not shape.single:
        count_values(shape, work, row)
    total = served.bias[0, 0] + dense_sum(served.dense, work.rows.dense, row)
    total += linear_sum(shape, served.linear, work, row)
    if shape.kind != LR:
        pool(shape, served.embeddings, work, row)
        if shape.kind == FM:
            fm.towards(shape, work.room)
        elif shape.kind == FWFM:
            fwfm.towards(shape, work.room, served.pairs)
        else:
            ffm.towards(shape, work.room)
        total += half_dot(shape, work.room)
    return total
