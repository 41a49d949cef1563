"""Neighbours: what comparing with all gives, whatever the dtype and metric; an index misses few of them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.similarity import neighbours as neighbours_module
from headrace.similarity.neighbours import INDEX_PAYS_QUERIES, Index, index_pays, nearest, neighbours
from headrace.similarity.stored_rows import Metric, Rows, scores
from tests.unit.similarity.spaces import digits, patches


def one_by_one(vectors: np.ndarray, query: np.ndarray, metric: Metric) -> np.ndarray:
    """How similar all vectors are to one, by the formula, in float64."""
    wide, asked = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.sqrt(((wide - asked) ** 2).sum(axis=1))
    product = wide @ asked
    if metric == "dot":
        return product
    return product / (np.linalg.norm(wide, axis=1) * np.linalg.norm(asked))


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neighbours_are_those_of_the_formula(metric: Metric, dtype: type) -> None:
    vectors = digits()[0].astype(dtype)
    found = neighbours(vectors, vectors[[3, 700]], 12, metric=metric)
    for place, row in enumerate((3, 700)):
        similar = one_by_one(vectors, vectors[row], metric)
        order = np.argsort(similar if metric == "l2" else -similar, kind="stable")[:12]
        np.testing.assert_allclose(found.similarities[place], similar[order], rtol=1e-12, atol=1e-12)
        assert set(found.rows[place]) == set(order)
        if metric != "dot":
            assert found.rows[place, 0] == row


def test_neighbours_do_not_depend_on_how_the_vectors_are_cut_into_blocks() -> None:
    vectors = digits()[0]
    rows = Rows(vectors)
    whole = nearest(rows, rows.like(vectors[:40]), 5)
    rows.block = 7
    small = nearest(rows, rows.like(vectors[:40]), 5)
    np.testing.assert_array_equal(whole.rows, small.rows)
    np.testing.assert_array_equal(whole.similarities, small.similarities)


def test_the_scores_of_short_vectors_fit_into_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(metric: Metric, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        made = scores(metric, one, other)
        sizes.append(made.size)
        return made

    monkeypatch.setattr(neighbours_module, "scores", counted)
    rows = Rows(np.random.default_rng(0).standard_normal((20_000, 4), np.float32))
    found = nearest(rows, rows.only(np.arange(300)), 1)
    np.testing.assert_array_equal(found.rows[:, 0], np.arange(300))
    assert sum(sizes) == 300 * rows.count
    assert max(sizes) <= 2**22


def test_int8_vectors_are_compared_with_their_scales_where_these_count() -> None:
    vectors = digits()[0]
    scales = (np.abs(vectors).max(axis=1) / 127).astype(np.float32)
    small = np.round(vectors / scales[:, None]).astype(np.int8)
    rows = Rows(small, "l2", scales=scales)
    found = nearest(rows, rows.like(small[5], scales=scales[5:6]), 10)
    exact = neighbours(vectors, vectors[5], 10, metric="l2")
    assert len(set(found.rows[0]) & set(exact.rows[0])) >= 9
    np.testing.assert_allclose(found.similarities, exact.similarities, atol=0.5)
    assert neighbours(small, small[5], 1).rows[0, 0] == 5  # a cosine needs no scale


def test_a_vector_without_a_direction_is_similar_to_nothing() -> None:
    vectors = np.zeros((3, 4), np.float32)
    vectors[1] = 1
    found = neighbours(vectors, vectors[0], 3)
    assert found.similarities.tolist() == [[0.0, 0.0, 0.0]]


def test_very_large_and_very_small_numbers_have_cosines() -> None:
    vectors = np.array([[3e38, 0], [1e-38, 0], [0, 2e38], [-1e-30, 0]], np.float32)
    found = neighbours(vectors, vectors[0], 4)
    assert found.rows.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(found.similarities, [[1, 1, 0, -1]], atol=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_an_index_misses_few_and_says_exactly_how_similar_they_are(metric: Metric) -> None:
    pytest.importorskip("faiss")
    vectors = patches(5000)
    rows = Rows(vectors, metric)
    queries = rows.like(vectors[::40])
    exact, found = nearest(rows, queries, 10), Index(rows).search(queries, 10)
    shared = [len(set(one) & set(other)) for one, other in zip(exact.rows, found.rows, strict=True)]
    assert np.mean(shared) / 10 > 0.85  # flat pieces of sky are hard
    same = exact.rows == found.rows
    np.testing.assert_array_equal(exact.similarities[same], found.similarities[same])


def test_an_index_is_for_many_queries_among_many_rows() -> None:
    pytest.importorskip("faiss")
    many = Rows(np.zeros((20_000, 2), np.float16))
    assert index_pays(many, INDEX_PAYS_QUERIES)
    assert not index_pays(many, 1)
    assert not index_pays(Rows(np.zeros((100, 2), np.float16)), 10**6)
    assert not index_pays(Rows(np.zeros((20_000, 2), np.float16), "dot"), 10**6)


@pytest.mark.parametrize(
    ("vectors", "metric", "said"),
    [
        (np.zeros(3, np.float32), "cosine", r"vectors: expected the shape \[N, D\], got \[3\]"),
        (np.zeros((3, 2)), "cosine", "expected float32, float16 or int8, got float64"),
        (np.zeros((3, 2), np.int8), "l2", "scales: int8 vectors need their scales for l2"),
        (np.array([[0, 1], [np.nan, 1]], np.float32), "cosine", r"vectors\[1\]: expected finite"),
        (np.array([[np.inf, 1]], np.float16), "cosine", r"vectors\[0\]: expected finite"),
        (np.array([[1e20, 1]], np.float32), "l2", r"vectors\[0\]: expected finite numbers up to 1e\+15"),
        (np.zeros((3, 2), np.float32), "angle", "metric: expected cosine, dot, l2, got 'angle'"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(vectors: np.ndarray, metric: Metric, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Rows(vectors, metric)


def test_wrong_queries_and_counts_are_refused() -> None:
    vectors = digits()[0]
    with pytest.raises(InvalidRequest, match="queries: expected 64 numbers a vector, got 3"):
        neighbours(vectors, np.zeros(3, np.float32))
    for count in (0, 10_001):
        with pytest.raises(InvalidRequest, match="count: expected 1 to 10000"):
            neighbours(vectors, vectors[0], count)
    with pytest.raises(InvalidRequest, match="not dot; set exact=True"):
        neighbours(vectors, vectors[0], metric="dot", exact=False)


def test_there_are_no_more_neighbours_than_vectors() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assert neighbours(vectors, vectors[0], 10).rows.shape == (1, 3)
    assert neighbours(vectors[:0], vectors[0], 10).rows.shape == (1, 0)
