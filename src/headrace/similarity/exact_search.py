"""Exact nearest rows by comparison with all rows, block by block; needs no additional package.

A query costs a dot product with each row, about 20 ns per row of 256 numbers when many queries are batched.
Building an index costs about as much as 15,000 such queries, for any number of rows, and pays only beyond
that (docs/decisions/0019).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.similarity.stored_rows import (
    Doubles,
    Floats,
    Numbers,
    Progress,
    Rows,
    scores,
    similarities,
    unwatched,
)

MOST_NEIGHBOURS = 10_000
"""Maximum number of neighbours."""

_QUERIES_AT_ONCE = 512


class Nearest(NamedTuple):
    """The nearest rows of queries, the nearest first.

    Attributes:
        rows: int64 ``[Q, k]``.
        similarities: float64 ``[Q, k]``: the cosine, the dot product, or the distance.
    """

    rows: Numbers
    similarities: Doubles


def nearest(rows: Rows, queries: Rows, count: int, progress: Progress = unwatched) -> Nearest:
    """Find the nearest rows.

    Args:
        rows: Rows to search.
        queries: Queries, made by ``rows.like``.
        count: Number of neighbours, limited by the number of rows.
        progress: Called with the progress.

    Raises:
        InvalidRequest: The count is not in 1 … ``MOST_NEIGHBOURS``.
    """
    count = checked_count(count, rows)
    found = np.empty((queries.count, count), np.int64)
    told = np.empty((queries.count, count), np.float64)
    total = queries.count * rows.count
    for some in queries.blocks(_QUERIES_AT_ONCE):
        asked = queries.take(some)
        best: tuple[Floats, Numbers] | None = None
        for block in rows.blocks():
            best = _better(best, scores(rows.metric, asked, rows.take(block)), block.start, count)
            progress("comparing", some.start * rows.count + len(asked) * block.stop, total)
        if best is not None:
            found[some], told[some] = ranked(rows, queries, some, best[1], count)
    return Nearest(found, told)


def checked_count(count: int, rows: Rows) -> int:
    """Return the number of neighbours, limited by the number of rows.

    Raises:
        InvalidRequest: The count is not in 1 … ``MOST_NEIGHBOURS``.
    """
    if not 1 <= count <= MOST_NEIGHBOURS:
        raise InvalidRequest(f"expected 1 to {MOST_NEIGHBOURS}, got {count}", field="count")
    return min(count, rows.count)


def ranked(rows: Rows, queries: Rows, some: slice, candidates: Numbers, count: int) -> Nearest:
    """Return the nearest candidates of each query, by similarities in float64 of the vectors themselves.

    Args:
        rows: Rows that contain the candidates.
        queries: All queries.
        some: Slice of the queries to rank for.
        candidates: int64 ``[n, c]``; -1 for none, which is ranked last.
        count: Number of candidates to keep.
    """
    is_distance = rows.metric == "l2"
    found = np.empty((len(candidates), count), np.int64)
    told = np.empty((len(candidates), count), np.float64)
    for row, (asked, numbers) in enumerate(zip(queries.doubles(some), candidates, strict=True)):
        made = similarities(rows.metric, asked[None], rows.doubles(np.maximum(numbers, 0)))
        made[numbers < 0] = np.inf if is_distance else -np.inf
        order = np.argsort(made if is_distance else -made, kind="stable")[:count]
        found[row], told[row] = numbers[order], made[order]
    return Nearest(found, told)


def _better(
    best: tuple[Floats, Numbers] | None, made: Floats, start: int, count: int
) -> tuple[Floats, Numbers]:
    """Merge the best rows so far with those of a block; on equal scores the earlier row comes first."""
    if made.shape[1] > count:
        # The cut is by score alone; of rows with equal scores at the cut, any may remain.
        kept = np.argpartition(-made, count - 1, axis=1)[:, :count]
        kept.sort(axis=1)
        made = np.take_along_axis(made, kept, axis=1)
    else:
        kept = np.broadcast_to(np.arange(made.shape[1]), made.shape)
    numbers = kept.astype(np.int64) + start
    if best is not None:
        made = np.concatenate([best[0], made], axis=1)
        numbers = np.concatenate([best[1], numbers], axis=1)
    order = np.argsort(-made, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(made, order, axis=1), np.take_along_axis(numbers, order, axis=1)
