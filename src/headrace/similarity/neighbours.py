"""Nearest neighbours of vectors: exact, by comparison with all rows, or by an index."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import InvalidRequest, needs_extra
from headrace.base.tensors import Array
from headrace.similarity.stored_rows import (
    Doubles,
    Floats,
    Metric,
    Numbers,
    Progress,
    Rows,
    ignore_progress,
    scores,
    similarities,
)

# Exact nearest rows by comparison with all rows, block by block; needs no additional package.
#
# A query costs a dot product with each row, about 20 ns per row of 256 numbers when many queries are batched.
# Building an index costs about as much as 15,000 such queries, for any number of rows, and pays only beyond
# that (docs/decisions/0019).


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


def nearest(rows: Rows, queries: Rows, count: int, progress: Progress = ignore_progress) -> Nearest:
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
    similarity = np.empty((queries.count, count), np.float64)
    total = queries.count * rows.count
    for some in queries.blocks(_QUERIES_AT_ONCE):
        asked = queries.take(some)
        best: tuple[Floats, Numbers] | None = None
        for block in rows.blocks(rows.at_once(len(asked))):
            best = _better(best, scores(rows.metric, asked, rows.take(block)), block.start, count)
            progress("comparing", some.start * rows.count + len(asked) * block.stop, total)
        if best is not None:
            found[some], similarity[some] = ranked(rows, queries, some, best[1], count)
    return Nearest(found, similarity)


def checked_count(count: int, rows: Rows) -> int:
    """Return the number of neighbours, limited by the number of rows.

    Raises:
        InvalidRequest: The count is not in 1 … ``MOST_NEIGHBOURS``.
    """
    if not 1 <= count <= MOST_NEIGHBOURS:
        raise InvalidRequest(f"expected 1 to {MOST_NEIGHBOURS}, got {count}", field="count")
    return min(count, rows.count)


def ranked(rows: Rows, queries: Rows, some: slice, candidates: Numbers, count: int) -> Nearest:
    """Return each query's nearest candidates, ranked by float64 similarities of the stored vectors.

    Args:
        rows: Rows that contain the candidates.
        queries: All queries.
        some: The queries that the rows of ``candidates`` belong to.
        candidates: int64 ``[n, c]``; -1 for none, which is ranked last.
        count: Number of candidates to keep.
    """
    is_distance = rows.metric == "l2"
    found = np.empty((len(candidates), count), np.int64)
    similarity = np.empty((len(candidates), count), np.float64)
    for row, (asked, numbers) in enumerate(zip(queries.doubles(some), candidates, strict=True)):
        made = similarities(rows.metric, asked[None], rows.doubles(np.maximum(numbers, 0)))
        made[numbers < 0] = np.inf if is_distance else -np.inf
        order = np.argsort(made if is_distance else -made, kind="stable")[:count]
        found[row], similarity[row] = numbers[order], made[order]
    return Nearest(found, similarity)


def _better(
    best: tuple[Floats, Numbers] | None, made: Floats, start: int, count: int
) -> tuple[Floats, Numbers]:
    """Merge the best rows so far with those of a block; on equal scores the earlier row comes first."""
    if made.shape[1] > count:
        # The cut is by score alone; of rows with equal scores at the cut, any may remain.
        kept = np.argpartition(made, -count, axis=1)[:, -count:]
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


# faiss's HNSW index, for so many queries that comparing each with all rows takes longer.
#
# For the choice of faiss see docs/decisions/0019. The index only selects candidates; their similarities are
# recomputed from the vectors themselves.


_LINKS = 16
_BUILD_EFFORT = 64
_LEAST_EFFORT = 128
_MORE_CANDIDATES = 2
_BLOCK_ROWS = 4096


class Index:
    """A graph of neighbouring rows that queries traverse."""

    def __init__(self, rows: Rows, progress: Progress = ignore_progress) -> None:
        """Build the index.

        Args:
            rows: Rows to index; kept by reference. The index adds a float16 copy (float32 for ``l2``), and
                144 bytes of links per row.
            progress: Called with the progress.

        Raises:
            ConfigError: faiss is not installed.
            InvalidRequest: The metric is ``dot``, for which the graph does not work: a vector may be nearer
                to others than to itself.
        """
        if rows.metric == "dot":
            raise InvalidRequest("an index supports cosine and l2, not dot; set exact=True", field="metric")
        try:
            faiss: Any = import_module("faiss")
        except ImportError as error:
            raise needs_extra("an index", "similarity", error) from error
        self._rows = rows
        self._index: Any
        if rows.metric == "cosine":
            half = faiss.ScalarQuantizer.QT_fp16
            self._index = faiss.IndexHNSWSQ(rows.dimension, half, _LINKS, faiss.METRIC_INNER_PRODUCT)
        else:
            self._index = faiss.IndexHNSWFlat(rows.dimension, _LINKS, faiss.METRIC_L2)
        self._index.hnsw.efConstruction = _BUILD_EFFORT
        self._index.is_trained = True  # float16 needs no training
        for some in rows.blocks(_BLOCK_ROWS):
            self._index.add(rows.take(some))
            progress("indexing", some.stop, rows.count)

    def search(self, queries: Rows, count: int, progress: Progress = ignore_progress) -> Nearest:
        """Find the nearest rows, approximately.

        Args:
            queries: Queries, made by ``rows.like``.
            count: Number of neighbours, limited by the number of rows.
            progress: Called with the progress.

        Raises:
            InvalidRequest: The count is not in 1 … ``MOST_NEIGHBOURS``.
        """
        count = checked_count(count, self._rows)
        candidates = min(self._rows.count, count * _MORE_CANDIDATES)
        self._index.hnsw.efSearch = max(_LEAST_EFFORT, candidates * 2)
        found = np.empty((queries.count, count), np.int64)
        similarity = np.empty((queries.count, count), np.float64)
        for some in queries.blocks(_BLOCK_ROWS):
            numbers = self._index.search(queries.take(some), candidates)[1].astype(np.int64)
            found[some], similarity[some] = ranked(self._rows, queries, some, numbers, count)
            progress("searching", some.stop, queries.count)
        return Nearest(found, similarity)


INDEX_PAYS_QUERIES = 15_000
"""Minimum number of queries to build an index for; with fewer, comparing all rows is faster."""

INDEX_PAYS_ROWS = 20_000
"""Minimum number of rows to build an index for; with fewer, comparing all rows is as fast."""


def neighbours(
    vectors: Array,
    queries: Array,
    count: int = 10,
    *,
    metric: Metric = "cosine",
    exact: bool | None = None,
    progress: Progress = ignore_progress,
) -> Nearest:
    """Find the nearest neighbours of vectors.

    Args:
        vectors: float32, float16 or int8 ``[N, D]``; not copied.
        queries: One vector ``[D]`` or several ``[Q, D]``, of these dtypes; one that is among the vectors
            usually finds itself first, except by ``dot``.
        count: Number of neighbours of each query, limited by the number of vectors.
        metric: Metric to compare by; int8 vectors by cosine only. For other metrics, call ``nearest`` with
            ``Rows`` that have scales.
        exact: Whether to compare with all vectors; if False, an index is built, which misses few. None
            chooses the faster way, and True if faiss is not installed.
        progress: Called with the progress.

    Returns:
        Row numbers and similarities, the nearest first; row -1 (similarity ``-inf``, distance ``inf``) where
        an index found too few.

    Raises:
        InvalidRequest: An argument is wrong.
        ConfigError: ``exact`` is False, and faiss is not installed.
    """
    rows = Rows(vectors, metric)
    asked = rows.like(queries)
    if exact is None:
        exact = not index_pays(rows, asked.count)
    if exact:
        return nearest(rows, asked, count, progress)
    return Index(rows, progress).search(asked, count, progress)


def index_pays(rows: Rows, queries: int) -> bool:
    """Return whether building an index pays for a number of queries, and faiss is installed."""
    pays = queries >= INDEX_PAYS_QUERIES and rows.count >= INDEX_PAYS_ROWS and rows.metric != "dot"
    return pays and find_spec("faiss") is not None
