"""Near-duplicates: the groups that comparing all with all gives, and what was missed is told."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.similarity import duplicates as duplicates_module
from headrace.similarity.duplicates import Duplicates, Effort, duplicates
from headrace.similarity.stored_rows import Metric, Rows, scores, similarities
from tests.unit.similarity.spaces import digits, patches

CELLS = Effort(exact=False)


def by_hand(vectors: np.ndarray, metric: Metric, threshold: float) -> tuple[set[frozenset[int]], int]:
    """All groups and the number of pairs, by comparing all with all in float64, and walking."""
    wide = vectors.astype(np.float64)
    beside = defaultdict(set)
    pairs = 0
    for row, vector in enumerate(wide):
        similar = similarities(metric, vector[None], wide[row + 1 :])
        near = similar <= threshold if metric == "l2" else similar >= threshold
        for other in np.flatnonzero(near | (wide[row + 1 :] == vector).all(axis=1)) + row + 1:
            beside[row].add(int(other))
            beside[int(other)].add(row)
            pairs += 1
    groups, seen = set(), set()
    for row in list(beside):
        waiting, group = [row], set()
        while waiting:
            one = waiting.pop()
            if one not in group:
                group.add(one)
                waiting.extend(beside[one])
        if row not in seen:
            groups.add(frozenset(group))
        seen |= group
    return groups, pairs


def groups(found: Duplicates) -> set[frozenset[int]]:
    return {frozenset(map(int, group.rows)) for group in found.groups}


@pytest.mark.parametrize(("metric", "threshold"), [("cosine", 0.97), ("l2", 14.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_groups_are_those_of_comparing_all_with_all(metric: Metric, threshold: float, dtype: type) -> None:
    vectors = np.concatenate([digits()[0], digits()[0][100:150] * 1.001]).astype(dtype)
    wanted, pairs = by_hand(vectors, metric, threshold)
    found = duplicates(Rows(vectors, metric), threshold)
    assert len(wanted) > 20
    assert groups(found) == wanted
    assert found.pair_count == pairs
    assert (found.row_count, found.group_count, found.recall) == (len(vectors), len(wanted), 1.0)
    assert found.extra_rows == sum(map(len, wanted)) - len(wanted)


@pytest.mark.parametrize(("metric", "threshold"), [("cosine", 0.97), ("l2", 14.0)])
def test_cells_find_nearly_all_pairs_of_real_vectors(metric: Metric, threshold: float) -> None:
    rows = Rows(digits()[0], metric)
    exact, found = duplicates(rows, threshold), duplicates(rows, threshold, CELLS)
    assert 0.9 * exact.pair_count < found.pair_count <= exact.pair_count
    assert found.recall is not None
    assert found.recall == pytest.approx(found.pair_count / exact.pair_count, abs=0.05)


@pytest.mark.rest
def test_cells_find_the_copies_among_pieces_of_photographs() -> None:
    rows = Rows(patches(10_500))
    exact = duplicates(rows, 0.98, Effort(exact=True, most_groups=10_000))
    found = duplicates(rows, 0.98, Effort(most_groups=10_000))
    assert exact.group_count > 50
    assert found.recall is None or found.recall > 0.95
    assert found.pair_count > 0.98 * exact.pair_count
    assert len(groups(found) & groups(exact)) > 0.95 * exact.group_count


def test_equal_vectors_are_one_group_however_many_there_are() -> None:
    vectors = np.concatenate([np.zeros((50_000, 8)), np.eye(8), np.eye(8)[:3] * 2]).astype(np.float16)
    found = duplicates(Rows(vectors), 0.9, CELLS)
    assert [len(group.rows) for group in found.groups] == [50_000, 2, 2, 2]
    assert found.equal_rows == 49_999  # of those twice as long, only the direction is equal
    assert found.pair_count == 50_000 * 49_999 // 2 + 3
    assert all((group.similarities >= 0.9).all() for group in found.groups)
    assert duplicates(Rows(vectors, "l2"), 0.0).group_count == 1


def test_minus_zero_is_zero() -> None:
    found = duplicates(Rows(np.array([[0.0, 1], [-0.0, 1]], np.float32), "l2"), 0.0)
    assert found.equal_rows == 1


def test_a_group_begins_with_its_middle_and_says_how_far_the_others_are() -> None:
    angles = np.deg2rad([0, 10, 20, 30, 40, 200])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    (group,) = duplicates(Rows(vectors), float(np.cos(np.deg2rad(10.5)))).groups
    assert (group.rows[0], set(group.rows[1:3]), set(group.rows[3:])) == (2, {1, 3}, {0, 4})
    np.testing.assert_allclose(group.similarities, np.cos(np.deg2rad([0, 10, 10, 20, 20])), atol=1e-6)


def test_only_the_largest_groups_are_given_but_all_are_counted() -> None:
    vectors = np.repeat(np.eye(5, dtype=np.float32), [1, 2, 4, 3, 2], axis=0)
    found = duplicates(Rows(vectors), 1.0, Effort(most_groups=2))
    assert [len(group.rows) for group in found.groups] == [4, 3]
    assert (found.group_count, found.extra_rows, found.equal_rows) == (4, 7, 7)


def test_int8_vectors_of_another_scale_are_equal_by_cosine_only() -> None:
    vectors, scales = np.ones((2, 4), np.int8), np.array([1, 2], np.float32)
    assert duplicates(Rows(vectors, scales=scales), 1.0).group_count == 1
    assert duplicates(Rows(vectors, "l2", scales=scales), 1.9).group_count == 0
    assert duplicates(Rows(vectors, "l2", scales=scales), 2.0).group_count == 1


def test_int8_vectors_of_equal_scales_are_equal_by_distance_among_others() -> None:
    vectors, scales = np.ones((4, 4), np.int8), np.array([1, 2, 2, 1], np.float32)
    found = duplicates(Rows(vectors, "l2", scales=scales), 0.0)
    assert groups(found) == {frozenset({0, 3}), frozenset({1, 2})}
    assert found.equal_rows == 2


@pytest.mark.parametrize("threshold", [1e20, 1e200])
def test_all_vectors_are_near_within_a_huge_distance(threshold: float) -> None:
    assert duplicates(Rows(digits()[0][:10], "l2"), threshold).pair_count == 45


def test_the_scores_of_sampled_short_vectors_fit_into_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(metric: Metric, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        sizes.append(len(one) * len(other))
        return scores(metric, one, other)

    monkeypatch.setattr(duplicates_module, "scores", counted)
    vectors = np.random.default_rng(0).standard_normal((6000, 4)).astype(np.float32)
    duplicates(Rows(vectors), 1.0, Effort(exact=False, checked_rows=1000))
    assert max(sizes) <= 2**22


def test_no_vectors_have_no_duplicates() -> None:
    for count, effort in itertools.product((0, 1), (Effort(), CELLS)):
        found = duplicates(Rows(np.ones((count, 4), np.float16)), 0.9, effort)
        assert (found.groups, found.pair_count, found.row_count) == ((), 0, count)


def test_progress_comes_to_its_end() -> None:
    told = {}
    duplicates(Rows(digits()[0]), 0.97, CELLS, lambda what, done, total: told.update({what: (done, total)}))
    assert {"finding cells", "sorting into cells", "comparing", "ordering groups"} == set(told)
    assert all(done == total for done, total in told.values())


def test_searches_that_would_take_too_long_are_refused_at_the_start() -> None:
    with pytest.raises(TooLarge, match=r"most_comparisons: expected at most 1000000 comparisons"):
        duplicates(Rows(digits()[0]), 0.9, Effort(most_comparisons=10**6))


@pytest.mark.parametrize(
    ("metric", "threshold", "said"),
    [
        ("cosine", 0.0, "threshold: expected a cosine above 0, up to 1, got 0.0"),
        ("cosine", float("nan"), "threshold"),
        ("l2", -1.0, "threshold: expected a distance, 0 or more"),
        ("l2", float("inf"), "threshold"),
        ("dot", 0.5, "metric: expected cosine or l2"),
    ],
)
def test_wrong_thresholds_are_refused(metric: Metric, threshold: float, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        duplicates(Rows(np.ones((2, 2), np.float32), metric), threshold)
