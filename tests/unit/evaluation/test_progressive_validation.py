"""Scores are those of scikit-learn, windows cut rows wherever blocks end, and trends follow a truth table."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.evaluation.progressive_validation import REMEMBERED, Trend, Window, Windows, trend_of
from headrace.evaluation.tallies import Scored, exact_areas
from headrace.stream.block import Slice


def rows(count: int, *, seed: int = 0, weighted: bool = False, ties: bool = False) -> Scored:
    source = np.random.default_rng(seed)
    truth = source.beta(1.0, 4.0, count).astype(np.float32)
    labels = (source.random(count) < truth).astype(np.float32)
    logits = np.log(truth + 1e-6) - np.log1p(-truth + 1e-6) + source.normal(0, 0.5, count)
    predictions = (1 / (1 + np.exp(-logits))).astype(np.float32)
    if ties:
        predictions = np.round(predictions, 1)
    weights = source.random(count).astype(np.float32) if weighted else None
    return Scored(predictions, labels, weights, truth, np.zeros((0, count), np.int32))


def part_by_part(windows: Windows, all_rows: Scored, size: int) -> list[int]:
    closed = []
    for start in range(0, len(all_rows.labels), size):
        stop = min(start + size, len(all_rows.labels))
        closed += [window.score.rows for window in windows.add(all_rows.part(start, stop))]
    return closed


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_a_window_is_scored_as_by_scikit_learn(weighted: bool, ties: bool) -> None:
    given = rows(5000, weighted=weighted, ties=ties)
    (window,) = Windows(5000).add(given)
    score, weights = window.score, given.weights
    labels, wide = given.labels.astype(np.float64), given.predictions.astype(np.float64)
    assert score.auc == pytest.approx(roc_auc_score(labels, wide, sample_weight=weights), abs=1e-12)
    clipped = np.clip(wide, 1e-7, 1 - 1e-7)
    assert score.logloss == pytest.approx(log_loss(labels, clipped, sample_weight=weights), rel=1e-9)
    assert score.optimal_logloss == pytest.approx(
        log_loss(labels, given.truth.astype(np.float64), sample_weight=weights), rel=1e-9
    )
    rate = np.average(labels, weights=weights)
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert score.click_rate == pytest.approx(rate, rel=1e-9)
    assert score.normalized_entropy == pytest.approx(score.logloss / entropy, rel=1e-9)
    assert score.calibration == pytest.approx(np.average(wide, weights=weights) / rate, rel=1e-6)


def test_the_auc_of_a_run_is_within_the_error_that_it_states() -> None:
    given = rows(30_000)
    windows = Windows(1000)
    windows.add(given)
    total = windows.total()
    exact = roc_auc_score(given.labels, given.predictions)
    assert total.auc is not None
    assert total.auc_error is not None
    assert abs(total.auc - exact) <= total.auc_error < 2e-3
    assert abs(total.auc - exact) < 1e-5


def test_windows_have_their_rows_whatever_the_blocks() -> None:
    windows = Windows(700)
    assert part_by_part(windows, rows(2000), 333) == [700, 700]
    assert [(one.number, one.last_row, one.score.rows) for one in windows.finish()] == [(3, 2000, 600)]
    assert windows.finish() == []
    assert windows.rows == 2000


def test_blocks_of_any_size_give_the_same_scores() -> None:
    given, whole, cut = rows(2000, weighted=True), Windows(500), Windows(500)
    expected = whole.add(given)
    found = [window for start in range(0, 2000, 77) for window in cut.add(given.part(start, start + 77))]
    assert found == expected
    assert cut.total() == whole.total()


def test_a_window_of_one_class_has_no_auc_and_no_normalized_entropy() -> None:
    given = rows(100)._replace(labels=np.zeros(100, np.float32))
    (window,) = Windows(100).add(given)
    assert window.score.auc is None
    assert window.score.normalized_entropy is None
    assert window.score.calibration is None
    assert window.score.logloss is not None


def test_rows_without_weight_have_no_scores() -> None:
    given = rows(10)._replace(weights=np.zeros(10, np.float32))
    (window,) = Windows(10).add(given)
    assert (window.score.rows, window.score.logloss, window.score.auc) == (10, None, None)


def test_sure_errors_cost_much_but_not_infinitely_much() -> None:
    sure = rows(2)._replace(
        predictions=np.array([0.0, 1.0], np.float32), labels=np.array([1.0, 0.0], np.float32)
    )
    (window,) = Windows(2).add(sure)
    assert window.score.logloss == pytest.approx(-np.log(1e-7), rel=1e-6)
    assert window.score.auc == 0.0


def test_each_value_of_a_slice_is_scored_apart() -> None:
    given = rows(3000)
    codes = (np.arange(3000) % 3).astype(np.int32) - 1
    windows = Windows(3000, ["site"])
    coded = given._replace(codes=windows.encode({"site": Slice(codes, ("x", "y"))}, 3000))
    (window,) = windows.add(coded)
    for code, value in enumerate(("x", "y")):
        chosen = codes == code
        score = window.slices["site"][value]
        assert score.rows == 1000
        assert score.auc == pytest.approx(roc_auc_score(given.labels[chosen], given.predictions[chosen]))
        assert score.logloss == pytest.approx(log_loss(given.labels[chosen], given.predictions[chosen]))


@pytest.mark.exact
def test_a_slice_costs_what_its_values_in_one_window_cost_however_many_there_have_been() -> None:
    windows, many = Windows(100, ["user"]), 5000
    given = rows(many)
    values = Slice(np.arange(many, dtype=np.int32), tuple(f"user{number}" for number in range(many)))
    coded = given._replace(codes=windows.encode({"user": values}, many))
    tracemalloc.start()
    try:
        assert [len(one.slices["user"]) for one in windows.add(coded)] == [100] * 50
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    without, _ = Windows(100).state()
    arrays, _ = windows.state()
    assert {name: one.nbytes for name, one in arrays.items()} == {n: one.nbytes for n, one in without.items()}


def test_values_of_slices_keep_their_numbers_from_block_to_block() -> None:
    windows = Windows(10, ["site"])
    first = windows.encode({"site": Slice(np.array([0, 1, -1], np.int32), ("x", "y"))}, 3)
    second = windows.encode({"site": Slice(np.array([0, 1], np.int32), ("z", "x"))}, 2)
    assert first.tolist() == [[0, 1, -1]]
    assert second.tolist() == [[2, 0]]


def test_scoring_goes_on_from_a_state_as_if_nothing_had_happened() -> None:
    def codes(windows: Windows, count: int) -> Array:
        values = (np.arange(count) % 2).astype(np.int32)
        return windows.encode({"site": Slice(values, ("x", "y"))}, count)

    given = rows(2000, weighted=True)
    undisturbed, before, after = (Windows(300, ["site"]) for _ in range(3))
    given = given._replace(codes=codes(undisturbed, 2000))
    expected = undisturbed.add(given.part(0, 1000)) + undisturbed.add(given.part(1000, 2000))
    codes(before, 2)
    found = before.add(given.part(0, 1000))
    arrays, meta = before.state()
    after.restore({name: array.copy() for name, array in arrays.items()}, meta)
    found += after.add(given.part(1000, 2000))
    assert found == expected
    assert after.finish() == undisturbed.finish()
    assert after.total() == undisturbed.total()


def test_a_state_with_other_slices_is_refused() -> None:
    arrays, meta = Windows(300, ["site"]).state()
    with pytest.raises(ConfigError, match=r"slice: expected \['site'\], as in the checkpoint, got \[\]"):
        Windows(300).restore(arrays, meta)


def test_a_window_has_at_least_one_row() -> None:
    with pytest.raises(ConfigError, match="window-rows: expected 1 row or more, got 0"):
        Windows(0)


def test_areas_of_groups_are_independent() -> None:
    given = rows(1000)
    groups = np.arange(1000) % 4
    found = exact_areas(given.predictions, given.labels, None, groups, 5)
    for group in range(4):
        chosen = groups == group
        expected = roc_auc_score(given.labels[chosen], given.predictions[chosen])
        assert found[group] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[4])


STEADY = [0.9, 0.901, 0.899, 0.9, 0.9]


@pytest.mark.parametrize(
    ("entropies", "expected"),
    [
        ([], None),
        ([0.9], None),
        (STEADY, None),
        ([*STEADY, 0.9], None),
        ([*STEADY, 0.905], None),  # by less than a hundredth
        ([*STEADY, 0.92], "jumped"),
        ([*STEADY, 0.7], None),  # for the better
        ([0.9, 0.95, 0.9, 0.95, 0.9, 0.97], None),  # they are spread anyway
        ([*STEADY, 0.906, 0.912, 0.918, 0.924, 0.94], "tired"),
        ([*STEADY, 0.906, 0.912, 0.88, 0.924, 0.93], None),  # not all of them are worse
        ([*STEADY, *STEADY], None),
        ([*STEADY, 0.96, *([0.92] * 4)], "tired"),  # a jump that is not made good
    ],
)
def test_trend_of_windows(entropies: list[float], expected: Trend | None) -> None:
    assert trend_of(entropies) == expected


@pytest.mark.parametrize("deviation", [0.003, 0.03])
def test_random_variation_is_seldom_reported_as_a_trend(deviation: float) -> None:
    """Windows of 1,000 rows differ by three hundredths: of two thousand, 580 were told to be tired."""
    random = np.random.default_rng(5)
    entropies = (0.9 + random.normal(scale=0.9 * deviation, size=1000)).tolist()
    told = [trend_of(entropies[max(0, at - REMEMBERED) : at]) for at in range(1, 1001)]
    assert sum(one is not None for one in told) <= 5
    worse = [one + 0.2 for one in entropies[500:505]]
    assert trend_of([*entropies[460:500], worse[0]]) == "jumped"
    assert trend_of([*entropies[460:500], *worse]) == "tired"


def test_windows_tell_it_also_after_a_checkpoint() -> None:
    windows = Windows(100)
    closed = [window for _ in range(6) for window in windows.add(_rows(0.3))]
    arrays, meta = windows.state()
    resumed = Windows(100)
    resumed.restore(arrays, msgspec.json.decode(msgspec.json.encode(meta)))
    assert _trends(closed) == [None] * 6
    assert _trends(resumed.add(_rows(0.9))) == _trends(windows.add(_rows(0.9))) == ["jumped"]


def test_a_checkpoint_from_before_it_was_told_is_gone_on_from() -> None:
    windows = Windows(100)
    windows.add(_rows(0.3))
    arrays, meta = windows.state()
    old = {name: value for name, value in meta.items() if name != "entropies"}
    resumed = Windows(100)
    resumed.restore(arrays, old)
    assert _trends(resumed.add(_rows(0.9))) == [None]


def test_the_rows_that_are_left_at_the_end_are_no_window_to_judge_by() -> None:
    windows = Windows(100)
    for _ in range(6):
        windows.add(_rows(0.3))
    windows.add(_rows(0.9).part(0, 7))
    assert _trends(windows.finish()) == [None]
    assert _trends(windows.add(_rows(0.9))) == ["jumped"]


def test_a_window_without_clicks_does_not_repeat_the_trend_of_the_one_before() -> None:
    windows = Windows(100)
    for _ in range(6):
        windows.add(_rows(0.3))
    assert _trends(windows.add(_rows(0.9))) == ["jumped"]
    assert _trends(windows.add(_rows(0.9)._replace(labels=np.zeros(100, np.float32)))) == [None]


def _trends(windows: list[Window]) -> list[Trend | None]:
    return [window.trend for window in windows]


def _rows(prediction: float) -> Scored:
    labels: Array = (np.arange(100) % 3 == 0).astype(np.float32)
    predictions: Array = np.full(100, prediction, np.float32)
    return Scored(predictions, labels, None, None, np.zeros((0, 100), np.int32))
