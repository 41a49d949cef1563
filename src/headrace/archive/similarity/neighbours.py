"""Which vectors are nearest to some others."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.archive.similarity.index import Index
from headrace.archive.similarity.nearest import Nearest, nearest
from headrace.archive.similarity.rows import Metric, Progress, Rows, unwatched
from headrace.tensors import Array

INDEX_PAYS_QUERIES = 15_000
"""For fewer queries an index is not built: comparing each with all rows takes less."""

INDEX_PAYS_ROWS = 20_000
"""Among fewer rows, comparing with all of them is as fast as walking an index."""


def neighbours(
    vectors: Array,
    queries: Array,
    count: int = 10,
    *,
    metric: Metric = "cosine",
    exact: bool | None = None,
    progress: Progress = unwatched,
) -> Nearest:
    """Find the nearest of many vectors.

    Args:
        vectors: float32, float16 or int8 ``[N, D]``; not copied.
        queries: One of the same, ``[D]``, or several ``[Q, D]``; what is among the vectors finds itself.
        count: How many neighbours of each; there are fewer if there are fewer vectors.
        metric: What near means. int8 vectors are compared by cosine; ``Rows`` takes their scales.
        exact: Whether to compare with all vectors; an index is built else, which misses few. None decides by
            what takes longer, and for exact where faiss is not installed.
        progress: Told how far it is.

    Returns:
        Numbers of rows, and how similar they are, the nearest first; row -1 (similarity ``-inf``, distance
        ``inf``) where an index led to too few.

    Raises:
        InvalidRequest: An argument is wrong.
        ConfigError: An index is asked for, and faiss is not installed.
    """
    rows = Rows(vectors, metric)
    asked = rows.like(queries)
    if exact is None:
        exact = not index_pays(rows, asked.count)
    if exact:
        return nearest(rows, asked, count, progress)
    return Index(rows, progress).search(asked, count, progress)


def index_pays(rows: Rows, queries: int) -> bool:
    """Whether so many queries are answered sooner by an index that is yet to be built, and it can be."""
    pays = queries >= INDEX_PAYS_QUERIES and rows.count >= INDEX_PAYS_ROWS and rows.metric != "dot"
    return pays and find_spec("faiss") is not None
