"""The learner is scored on what it predicted before it learnt, with labels at once or late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError
from headrace.base.tensors import Array
from headrace.evaluation.progressive_validation import Window, Windows
from headrace.stream.block import Block
from headrace.training.running.learner import Learner, Pending
from tests.unit.training.running.small_models import DivergingModel, RateModel, make_block, make_blocks


def learner(delay: float = 0.0, model: RateModel | None = None, slices: tuple[str, ...] = ()) -> Learner:
    return Learner(model or RateModel(), Windows(100, slices), Pending(delay) if delay else None)


def run(one: Learner, rows: int, size: int = 30, first_row: int = 0) -> list[Window]:
    return [window for block in make_blocks(rows, size, first_row) for window in one.take(block)]


def test_rows_are_scored_on_what_was_predicted_before_they_were_learnt() -> None:
    one, judge = learner(), RateModel()
    run(one, 90)
    predicted = np.concatenate([judge.learn(block) for block in make_blocks(90, 30)]).astype(np.float64)
    labels = make_block(90).labels
    expected = -np.mean(np.log(np.where(labels > 0.5, predicted, 1 - predicted)))
    assert one.windows.total().logloss == pytest.approx(expected)
    assert one.position.rows == 90
    assert one.position.newest_timestamp == 89_000_000


def test_a_late_label_is_not_learnt_before_it_is_known() -> None:
    model = RateModel()
    one = learner(delay=100.0, model=model)
    for block in make_blocks(300, 30):
        one.take(block)
        learnt = [first + 29 for first in model.learnt]
        assert all(last_row + 100.0 <= block.first_row for last_row in learnt)
        assert one.pending_rows == one.position.rows - 30 * len(model.learnt)
    assert model.learnt == [0, 30, 60, 90, 120]


@pytest.mark.parametrize("ended", [False, True])
def test_a_late_block_that_cannot_be_learnt_waits_with_those_after_it(ended: bool) -> None:
    class Failing(RateModel):
        def learn(self, block: Block) -> Array:
            if block.first_row == 30:
                raise MemoryError
            return super().learn(block)

    failing, repaired = Failing(), RateModel()
    before, after = learner(delay=100.0, model=failing), learner(delay=100.0, model=repaired)
    run(before, 90)
    with pytest.raises(MemoryError):
        before.finish() if ended else before.take(make_block(30, first_row=400))
    assert (failing.learnt, before.pending_rows) == ([0], 60)
    assert before.unfinished == (None if ended else (30, 60))
    state = before.state()
    after.restore(state.arrays, state.meta)
    after.take(make_block(30, first_row=400))
    assert repaired.learnt == [30, 60]
    assert after.pending_rows == 30


def test_the_end_of_the_stream_brings_the_labels_that_are_missing() -> None:
    model = RateModel()
    one = learner(delay=100.0, model=model)
    windows = run(one, 300) + one.finish()
    assert sum(window.score.rows for window in windows) == 300
    assert one.pending_rows == 0
    assert len(model.learnt) == 10


def test_late_labels_make_predictions_that_are_scored_worse_or_equal() -> None:
    prompt, late = learner(), learner(delay=150.0)
    for one in (prompt, late):
        run(one, 300)
        one.finish()
    assert late.windows.total().logloss > prompt.windows.total().logloss


def test_rows_out_of_order_wait_for_the_newest_time_seen() -> None:
    model = RateModel()
    one = learner(delay=10.0, model=model)
    one.take(make_block(5, 100))
    one.take(replace(make_block(5, 0), first_row=5))
    assert model.learnt == []
    one.take(make_block(5, 115))
    assert model.learnt == [100, 5]


def test_late_labels_need_timestamps() -> None:
    with pytest.raises(ConfigError, match="label-delay-seconds: the stream has no timestamps"):
        learner(delay=1.0).take(replace(make_block(3), timestamps=None))


def test_memory_for_rows_that_wait_is_bounded() -> None:
    one = Learner(RateModel(), Windows(100), Pending(1e6, most_bytes=2000))
    with pytest.raises(
        FailedPrecondition, match=r"rows that wait for their labels would take .* shorten --label-delay"
    ):
        run(one, 1000)
    assert one.pending_rows == one.position.rows < 1000


@pytest.mark.parametrize("slices", [0, 1, 3])
def test_the_memory_of_waiting_rows_includes_their_codes(slices: int) -> None:
    block, codes = make_block(100), np.zeros((slices, 100), np.int32)
    arrays = (block.indices, block.dense, block.labels, block.timestamps, block.truth)
    size = 400 * (1 + slices) + sum(array.nbytes for array in arrays if array is not None)
    Pending(60.0, most_bytes=size).add(block, np.zeros(100, np.float32), codes)
    with pytest.raises(FailedPrecondition, match="rows that wait for their labels would take"):
        Pending(60.0, most_bytes=size - 1).add(block, np.zeros(100, np.float32), codes)


def test_rows_of_the_last_moment_that_there_is_can_be_saved() -> None:
    pending, block = Pending(60.0), make_block(3)
    assert block.timestamps is not None
    block.timestamps[1] = np.iinfo(np.int64).max
    pending.add(block, np.zeros(3, np.float32), np.zeros((0, 3), np.int32))
    again = Pending(60.0)
    again.restore(pending.state())
    assert [one.due for one in again.drain()] == [np.iinfo(np.int64).max]


def test_a_delay_is_a_positive_time() -> None:
    with pytest.raises(ConfigError, match="label-delay-seconds: expected seconds, more than 0, got -1"):
        Pending(-1.0)


@pytest.mark.parametrize("delay", [0.0, 70.0])
def test_learning_goes_on_from_a_state_as_if_nothing_had_happened(delay: float) -> None:
    undisturbed, before, after = (learner(delay, slices=("category",)) for _ in range(3))
    expected = run(undisturbed, 500) + undisturbed.finish()
    found = run(before, 240)
    state = before.state()
    after.restore({name: array.copy() for name, array in state.arrays.items()}, state.meta)
    found += run(after, 500, first_row=240) + after.finish()
    assert found == expected
    assert after.windows.total() == undisturbed.windows.total()
    assert after.position == undisturbed.position
    left, right = after.state().arrays, undisturbed.state().arrays
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("saved", "now"), [(0.0, 5.0), (5.0, 0.0)])
def test_a_state_with_another_kind_of_labels_is_refused(saved: float, now: float) -> None:
    state = learner(saved).state()
    with pytest.raises(ConfigError, match="label-delay-seconds"):
        learner(now).restore(state.arrays, state.meta)


def test_a_model_that_diverges_says_where() -> None:
    one = learner(model=DivergingModel(60))
    with pytest.raises(
        ModelError, match=r"from row 60 to 89 its predictions are not finite; start a new run"
    ):
        run(one, 300)
    assert one.position.rows == 60


def test_empty_blocks_change_nothing() -> None:
    one = learner()
    assert one.take(make_block(0)) == []
    assert one.position.rows == 0
