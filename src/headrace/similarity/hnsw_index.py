"""An index of rows, for numbers of queries where comparing each with all rows takes longer: faiss's HNSW.

For the choice of faiss see docs/decisions/0019. The index only selects candidates; their similarities are
recomputed from the vectors themselves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from headrace.base.errors import ConfigError, InvalidRequest
from headrace.similarity.exact_search import Nearest, checked_count, ranked
from headrace.similarity.stored_rows import Progress, Rows, unwatched

_LINKS = 16
_BUILD_EFFORT = 64
_LEAST_EFFORT = 128
_MORE_CANDIDATES = 2
_BLOCK_ROWS = 4096


class Index:
    """A graph of neighbouring rows that queries traverse."""

    def __init__(self, rows: Rows, progress: Progress = unwatched) -> None:
        """Build the index.

        Args:
            rows: Rows to index; kept, not copied. The index stores another copy as float16 (float32 for
                ``l2``), and 144 bytes of links per row.
            progress: Called with the progress.

        Raises:
            ConfigError: faiss is not installed.
            InvalidRequest: The metric is ``dot``, for which the graph does not work: a vector may be nearer
                to others than to itself.
        """
        if rows.metric == "dot":
            raise InvalidRequest("an index is by cosine or l2; compare exactly for dot", field="metric")
        try:
            faiss: Any = import_module("faiss")
        except ImportError:
            raise ConfigError("an index needs faiss: pip install 'headrace[similarity]'") from None
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

    def search(self, queries: Rows, count: int, progress: Progress = unwatched) -> Nearest:
        """Find approximately the nearest rows.

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
        told = np.empty((queries.count, count), np.float64)
        for some in queries.blocks(_BLOCK_ROWS):
            numbers = self._index.search(queries.take(some), candidates)[1].astype(np.int64)
            found[some], told[some] = ranked(self._rows, queries, some, numbers, count)
            progress("searching", some.stop, queries.count)
        return Nearest(found, told)
