"""What the Batcher takes and what it refuses at once, and what it says then."""

from __future__ import annotations

import pytest

from headrace.base.errors import DeadlineExceeded, Overloaded, TooLarge
from headrace.config import BatchingPolicy
from headrace.model.servable import DEFAULT_SIGNATURE, Signature
from tests.unit.batching.stage import SUMS, Asked, Model, Stage


def refusal(asked: Asked) -> Overloaded:
    assert isinstance(asked.error, Overloaded), asked.error
    return asked.error


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4, max_queue_rows=10)) as stage:
        stage.knows_cost(0.010, 0.001)
        stage.occupy()
        taken = [stage.ask([1.0] * 4), stage.ask([2.0] * 4)]
        refused = refusal(stage.ask([3.0] * 3))
        assert "8 rows wait" in refused.message
        assert "max_queue_rows = 10" in refused.message
        assert refused.retriable
        # Nine rows are ahead: three batches of 10 ms, and 1 ms a row.
        assert refused.retry_after_seconds == pytest.approx(0.039)
        fits = stage.ask([4.0] * 2)
        assert (stage.batcher.queued_rows, stage.batcher.statistics.refused) == (10, 1)
        for enter in (1, 1, 1, 0):
            stage.finish(enter=enter)
        assert all(one.answered_right for one in [*taken, fits])
        assert stage.idle()


def test_a_request_larger_than_the_queue_is_refused_for_good_and_says_how_to_go_on() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4, max_queue_rows=8), inline=True) as stage:
        refused = stage.ask([1.0] * 9).error
        assert isinstance(refused, TooLarge)
        assert "9 rows" in refused.message
        assert "max_queue_rows = 8" in refused.message
        assert "fewer rows" in refused.message
        fits = stage.ask([1.0] * 8)
        stage.turn()
        assert fits.answered_right
        assert stage.model.rows == [4, 4]
        assert stage.idle()


def test_the_rest_of_a_large_request_holds_up_large_ones_but_no_small_one() -> None:
    """What is ahead of a small request is the part in the queue, and so it is refused for that alone."""
    with Stage(BatchingPolicy(max_batch_rows=4, max_queue_rows=20)) as stage:
        stage.knows_cost(0.010, 0.001)
        stage.occupy()
        large = stage.ask([1.0] * 20)
        assert "20 rows wait, 5 more" in refusal(stage.ask([2.0] * 5)).message
        # Five rows are ahead: two batches of 10 ms and 1 ms a row; this one itself costs 11 ms.
        assert "36.0 ms" in refusal(stage.ask([3.0], within=0.035)).message
        small = stage.ask([4.0], within=0.037)
        assert stage.batcher.queued_rows == 21
        stage.finish(enter=1)
        stage.finish(enter=1)
        assert small.settlements == []
        for enter in (1, 1, 1, 1, 0):
            stage.finish(enter=enter)
        assert small.sums == [4.0]
        assert large.answered_right
        assert stage.idle()


def test_a_wait_longer_than_the_deadline_is_refused_at_once() -> None:
    with Stage(BatchingPolicy(max_batch_rows=10)) as stage:
        stage.knows_cost(0.010, 0.001)
        stage.occupy()
        stage.ask([1.0] * 9)
        # Ten rows ahead cost 20 ms, this one itself 11 ms.
        assert "31.0 ms" in refusal(stage.ask([2.0], within=0.030)).message
        assert refusal(stage.ask([2.0], within=0.021)).retry_after_seconds == pytest.approx(0.010)
        in_time = stage.ask([3.0], within=0.032)
        assert in_time.settlements == []
        assert not stage.model.ran(2.0)
        stage.finish(enter=1)
        stage.finish()
        assert in_time.sums == [3.0]


def test_rows_that_have_been_answered_are_not_ahead_any_more() -> None:
    with Stage(BatchingPolicy(max_batch_rows=10)) as stage:
        for _ in range(3):
            stage.ask([1.0] * 10)
            stage.turn(enter=1)
            stage.finish()
        stage.batcher.cost.a, stage.batcher.cost.b = 0.010, 0.001
        stage.occupy()
        # One row ahead costs 11 ms, this one itself 11 ms.
        assert stage.ask([2.0], within=0.023).settlements == []


def test_more_instances_mean_shorter_waits() -> None:
    with Stage(BatchingPolicy(max_batch_rows=10), instances=2) as stage:
        stage.knows_cost(0.010, 0.001)
        stage.occupy(2)
        stage.ask([1.0] * 8)
        # Ten rows ahead cost 20 ms on one instance, 10 on two, and this one 11 ms.
        assert isinstance(stage.ask([2.0], within=0.020).error, Overloaded)
        assert stage.ask([2.0], within=0.022).settlements == []
        stage.finish(2, enter=1)


def test_without_a_deadline_no_wait_is_too_long() -> None:
    with Stage() as stage:
        stage.knows_cost(3600.0, 1.0)
        stage.occupy()
        patient = stage.ask([1.0])
        stage.finish(enter=1)
        stage.finish()
        assert patient.sums == [1.0]


def test_with_nothing_ahead_every_live_request_is_taken_however_dear_it_seems() -> None:
    """Or one wrong estimate could refuse everything, and nothing would ever correct it."""
    with Stage() as stage:
        stage.knows_cost(3600.0, 1.0)
        hopeful = stage.ask([1.0], within=0.001)
        stage.turn(enter=1)
        stage.finish()
        assert hopeful.sums == [1.0]


def test_a_model_that_takes_few_rows_at_once_is_predicted_to_need_many_calls() -> None:
    """A batch size fixed by the model, not the policy's larger one, says how long the wait is."""
    one_row = Signature(DEFAULT_SIGNATURE, SUMS.inputs, SUMS.outputs, rows=1)
    with Stage(model=Model(one_row)) as stage:
        for _ in range(3):
            stage.batcher.cost.observe(1, 0.010)
        stage.occupy()
        for _ in range(9):
            stage.ask([1.0])
        assert isinstance(stage.ask([2.0], within=0.100).error, Overloaded)
        assert stage.ask([2.0], within=0.120).settlements == []


def test_so_is_one_whose_batches_are_kept_short() -> None:
    with Stage(BatchingPolicy(max_batch_rows=100, max_batch_seconds=0.030)) as stage:
        stage.knows_cost(0.010, 0.010)
        stage.occupy()
        for _ in range(9):
            stage.ask([1.0])
        # Batches of two: five of them are ahead, 150 ms; then this one, 20 ms.
        assert refusal(stage.ask([2.0], within=0.165)).retry_after_seconds == pytest.approx(0.005)


def test_what_is_refused_leaves_no_trace() -> None:
    with Stage(BatchingPolicy(max_queue_rows=1)) as stage:
        stage.occupy()
        stage.ask([1.0])
        for length in range(2, 10):
            assert isinstance(stage.ask([[1.0] * length], within=5.0).error, Overloaded)
        assert stage.clock.timers == 0
        assert stage.batcher.outstanding == 2
        stage.finish(enter=1)
        stage.finish()
        assert stage.idle()


def test_one_timer_watches_all_deadlines() -> None:
    with Stage() as stage:
        stage.occupy()
        asked = [stage.ask([1.0], within=within) for within in (0.030, 0.010, 0.020, 0.0102)]
        assert stage.clock.timers == 1
        stage.clock.advance(0.0109)
        assert [isinstance(one.settlements and one.error, DeadlineExceeded) for one in asked] == [
            False, True, False, True,
        ]  # fmt: skip
        assert stage.clock.timers == 1
        stage.clock.advance(0.030)
        assert all(isinstance(one.error, DeadlineExceeded) for one in asked)
        assert stage.clock.timers == 0
        stage.finish()
        assert stage.idle()
