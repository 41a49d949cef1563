"""Nearest neighbours of vectors."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.base.tensors import Array
from headrace.similarity.exact_search import Nearest, nearest
from headrace.similarity.hnsw_index import Index
from headrace.similarity.stored_rows import Metric, Progress, Rows, unwatched

INDEX_PAYS_QUERIES = 15_000
"""Minimum number of queries to build an index for; for fewer, comparing all rows takes less time."""

INDEX_PAYS_ROWS = 20_000
"""Minimum number of rows to build an index for; with fewer, comparing all rows is as fast."""


def neighbours(
    vectors: Array,
    queries: Array,
    count: int = 10,
    *,
    metric: Metric = "cosine",
    exact: bool | None = None,
    progress: Progress = unwatched,
) -> Nearest:
    """Find the nearest neighbours of vectors.

    Args:
        vectors: float32, float16 or int8 ``[N, D]``; not copied.
        queries: One vector ``[D]`` or several ``[Q, D]``, of these dtypes; one that is among the vectors
            finds itself.
        count: Number of neighbours of each query, limited by the number of vectors.
        metric: Metric to compare by. int8 vectors are compared by cosine only; ``Rows`` takes their scales.
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
