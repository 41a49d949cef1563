"""Laws of what is near what, for any vectors."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.similarity.duplicates import Effort, Grouping, duplicates, first_equal
from headrace.similarity.neighbours import neighbours
from headrace.similarity.stored_rows import Rows

VECTORS = arrays.arrays(
    st.sampled_from([np.dtype(np.float32), np.dtype(np.float16)]),
    st.tuples(st.integers(1, 30), st.integers(1, 5)),
    elements=st.integers(-3, 3).map(float),
)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=80), st.data()
)
def test_groups_are_what_walking_along_pairs_reaches(
    count: int, drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    pairs = [(one % count, other % count) for one, other in drawn]
    grouping, cut = Grouping(count), data.draw(st.integers(0, len(pairs)))
    for some in (pairs[:cut], pairs[cut:]):
        grouping.join(*np.array(some, np.int64).reshape(-1, 2).T)
    smallest = list(range(count))
    for _ in range(count):
        for one, other in pairs:
            smallest[one] = smallest[other] = min(smallest[one], smallest[other])
    assert grouping.roots().tolist() == smallest


@settings(max_examples=200, deadline=None)
@given(VECTORS)
def test_the_first_equal_row_is_the_first_that_has_the_same_numbers(vectors: np.ndarray) -> None:
    texts = [tuple(row) for row in (vectors + 0).tolist()]
    assert first_equal(Rows(vectors)).tolist() == [texts.index(text) for text in texts]


@settings(max_examples=200, deadline=None)
@given(VECTORS, st.floats(0.1, 1.0), st.sampled_from(["cosine", "l2"]), st.sampled_from([1, 2, 9]))
def test_every_group_holds_together_and_comes_from_its_vectors(
    vectors: np.ndarray, threshold: float, metric: str, probes: int
) -> None:
    rows = Rows(vectors, metric)  # type: ignore[arg-type]
    exact = duplicates(rows, threshold)
    found = duplicates(rows, threshold, Effort(exact=False, probes=probes))
    assert found.pair_count <= exact.pair_count
    assert found.equal_rows == exact.equal_rows
    for result in (exact, found):
        members = [row for group in result.groups for row in group.rows.tolist()]
        assert len(members) == len(set(members)) == result.extra_rows + result.group_count
    roots = {row: number for number, group in enumerate(exact.groups) for row in group.rows.tolist()}
    for group in found.groups:
        assert len({roots[row] for row in group.rows.tolist()}) == 1


@settings(max_examples=200, deadline=None)
@given(VECTORS, st.integers(1, 40))
def test_neighbours_come_in_order_and_none_twice(vectors: np.ndarray, count: int) -> None:
    found = neighbours(vectors, vectors, count, metric="l2")
    assert found.rows.shape == (len(vectors), min(count, len(vectors)))
    assert (np.diff(found.similarities, axis=1) >= 0).all()
    assert (found.similarities[:, 0] == 0).all()
    assert all(len(set(row)) == len(row) for row in found.rows.tolist())
