"""The logit of one row in lr, fm, fwfm and ffm: the linear part and the pair terms.

Online learning and ``headrace.ctr.serving.scoring`` use this module. Learning in batches has its own logit,
made of the same parts. Serving has another implementation of the same sums, for many candidates at once:
``headrace.ctr.serving.context``.
"""

from __future__ import annotations

import numba

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.models import ffm, fm, fwfm
from headrace.ctr.models.arguments import FM, FWFM, LR
from headrace.ctr.models.embeddings import count_values, half_dot, pool, prefetch_rows
from headrace.ctr.models.linear import dense_sum, linear_sum

AHEAD = 8
"""Prefetch distance of linear weights, in rows."""

AHEAD_WIDE = 2
"""Prefetch distance of embeddings, in rows; each may span many cache lines."""


@numba.njit(**PART)
def prefetch_coming(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Prefetch the table rows that a later row needs, with their optimizer's state."""
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming, values = min(row + AHEAD_WIDE, last), served.embeddings.values
        prefetch_rows(values, indices, coming, values.shape[1])


@numba.njit(**PART)
def logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Return the logit of a row; leave its intermediate results in ``work.room``."""
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
