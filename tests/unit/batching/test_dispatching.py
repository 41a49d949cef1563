"""What is merged with what, and when it goes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import Overloaded
from headrace.batching.plan import Release
from headrace.config import BatchingPolicy
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from tests.unit.batching.stage import FLOAT, SUMS, Model, Stage


def test_a_lone_request_goes_at_once() -> None:
    with Stage() as stage:
        lone = stage.ask([1.0])
        stage.turn(enter=1)
        stage.finish()
        assert lone.sums == [1.0]
        assert lone.settlement.timings.formed == lone.request.enqueued
        assert stage.batcher.statistics.releases[Release.IDLE] == 1


def test_requests_that_arrived_together_share_a_batch() -> None:
    with Stage() as stage:
        together = [stage.ask([value]) for value in (1.0, 2.0, 3.0)]
        stage.turn(enter=1)
        stage.finish()
        assert all(one.answered_right for one in together)
        assert stage.model.rows == [3]
        assert {one.settlement.timings.requests for one in together} == {3}


def test_the_batch_grows_while_the_instance_is_busy_and_goes_when_it_is_free() -> None:
    with Stage() as stage:
        stage.occupy()
        waiting = []
        for value in range(20):
            waiting.append(stage.ask([float(value)]))
            stage.turn()
        assert stage.batcher.queued_rows == 20
        assert stage.model.rows == [1]
        stage.finish(enter=1)
        stage.finish()
        assert stage.model.rows == [1, 20]
        assert all(one.answered_right for one in waiting)


def test_the_next_batch_starts_before_the_last_ones_answers_are_sent() -> None:
    with Stage() as stage:
        seen: list[int] = []
        first = stage.ask([1.0], then=lambda: seen.append(stage.batcher.queued_rows))
        stage.turn(enter=1)
        stage.ask([2.0])
        stage.finish(enter=1)
        assert first.sums == [1.0]
        assert seen == [0]
        stage.finish()


def test_a_batch_has_no_more_rows_than_the_limit() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4)) as stage:
        stage.occupy()
        waiting = [stage.ask([float(value)]) for value in range(10)]
        for enter in (1, 1, 1, 0):
            stage.finish(enter=enter)
        assert stage.model.rows == [1, 4, 4, 2]
        assert all(one.answered_right for one in waiting)
        releases = stage.batcher.statistics.releases
        assert (releases[Release.FULL], releases[Release.IDLE]) == (2, 2)


def test_instances_run_side_by_side_and_no_more_than_there_are() -> None:
    with Stage(instances=2) as stage:
        stage.occupy(2)
        waiting = stage.ask([1.0])
        stage.turn()
        assert stage.model.rows == [1, 1]
        assert len(stage.threads()) == 2
        stage.finish(enter=1)
        stage.finish(2)
        assert waiting.sums == [1.0]
        assert len(stage.threads()) == 2


def test_threads_start_only_when_they_are_needed() -> None:
    with Stage(instances=4) as stage:
        for _ in range(5):
            stage.ask([1.0])
            stage.turn(enter=1)
            stage.finish()
        assert len(stage.threads()) == 1


def test_a_request_larger_than_the_limit_is_split_over_the_instances_and_joined() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4), instances=2) as stage:
        large, small = stage.ask(np.arange(10, dtype=np.float32)), stage.ask([50.0])
        stage.turn(enter=2)
        assert stage.batcher.outstanding == 4
        stage.finish(2, enter=2)
        assert large.settlements == []
        stage.finish(2)
        assert large.answered_right
        assert small.sums == [50.0]
        assert sorted(stage.model.rows) == [1, 2, 4, 4]
        assert stage.idle()


def test_others_are_let_in_between_the_parts_of_a_large_request() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4)) as stage:
        stage.occupy()
        large = stage.ask(np.arange(12, dtype=np.float32))
        small = [stage.ask([50.0]), stage.ask([51.0])]
        stage.finish(enter=1)
        late = stage.ask([52.0])
        stage.finish(enter=1)
        stage.finish(enter=1)
        assert [one.sums for one in small] == [[50.0], [51.0]]
        assert large.settlements == []
        stage.finish(enter=1)
        stage.finish(enter=1)
        assert late.sums == [52.0]
        stage.finish()
        assert stage.model.rows == [1, 4, 2, 4, 1, 4]
        assert large.answered_right
        assert stage.idle()


def test_requests_of_another_layout_are_let_in_between_them_as_well() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4)) as stage:
        stage.occupy()
        large = stage.ask(np.arange(12, dtype=np.float32))
        stage.clock.advance(0.010)
        other = stage.ask([[1.0, 2.0]])
        stage.clock.advance(0.010)
        stage.finish(enter=1)
        stage.finish(enter=1)
        stage.finish(enter=1)
        assert other.sums == [3.0]
        assert large.settlements == []
        stage.finish(enter=1)
        stage.finish()
        assert large.answered_right


def test_a_large_request_that_is_dropped_takes_all_its_parts_with_it() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4, max_queue_rows=20)) as stage:
        stage.occupy()
        large = stage.ask(np.arange(20, dtype=np.float32))
        large.gone = True
        small = stage.ask([50.0])
        stage.finish(enter=1)
        stage.finish()
        assert small.sums == [50.0]
        assert stage.model.rows == [1, 1]
        assert stage.idle()
        again = stage.ask(np.arange(20, dtype=np.float32))
        stage.turn(enter=1)
        for enter in (1, 1, 1, 1, 0):
            stage.finish(enter=enter)
        assert again.answered_right
        assert stage.idle()


def test_a_split_request_that_is_abandoned_halfway_costs_no_more() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4)) as stage:
        large = stage.ask(np.arange(12, dtype=np.float32))
        stage.turn(enter=1)
        large.gone = True
        stage.finish()
        assert stage.model.rows == [4]
        assert large.settlements == []
        assert stage.idle()


@pytest.mark.parametrize(("rows", "seen"), [([1], [2]), ([2], [2]), ([2, 3], [8]), ([8], [8]), ([9], [8, 2])])
def test_batches_are_padded_to_allowed_sizes(rows: list[int], seen: list[int]) -> None:
    policy = BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(2, 8))
    with Stage(policy, inline=True) as stage:
        asked = [stage.ask(np.arange(count, dtype=np.float32) + 1) for count in rows]
        stage.turn()
        assert stage.model.rows == seen
        assert all(one.answered_right for one in asked)
        counted = stage.batcher.statistics
        assert counted.rows == sum(rows)
        assert sum(size * calls for size, (calls, _) in counted.batch_rows.items()) == sum(seen)


def test_a_signature_of_fixed_rows_is_always_called_with_those() -> None:
    fixed = Signature(DEFAULT_SIGNATURE, SUMS.inputs, SUMS.outputs, rows=4)
    with Stage(model=Model(fixed), inline=True) as stage:
        asked = [stage.ask(np.arange(count, dtype=np.float32)) for count in (1, 6, 4)]
        stage.turn()
        assert set(stage.model.rows) == {4}
        assert all(one.answered_right for one in asked)


def test_a_slow_models_batches_stay_within_the_time() -> None:
    with Stage(BatchingPolicy(max_batch_seconds=0.05)) as stage:
        stage.knows_cost(0.0, 0.005)
        stage.occupy()
        for value in range(25):
            stage.ask([float(value)])
        stage.finish(enter=1)
        assert stage.model.rows == [1, 10]
        stage.finish(enter=1)


def test_within_the_time_allowed_sizes_are_filled_not_padded() -> None:
    """Twenty rows padded to 64 would take as long as 64: the largest allowed size within the time goes."""
    policy = BatchingPolicy(max_batch_rows=64, allowed_batch_rows=(8, 16, 64), max_batch_seconds=0.05)
    with Stage(policy) as stage:
        stage.knows_cost(0.0, 0.0025)
        stage.occupy()
        for value in range(40):
            stage.ask([float(value)])
        stage.finish(enter=1)
        assert stage.model.rows == [8, 16]


def test_no_allowed_size_within_the_time_means_the_smallest() -> None:
    policy = BatchingPolicy(max_batch_rows=64, allowed_batch_rows=(8, 64), max_batch_seconds=0.05)
    with Stage(policy) as stage:
        stage.knows_cost(0.0, 0.020)
        stage.occupy()
        for value in range(20):
            stage.ask([float(value)])
        stage.finish(enter=1)
        assert stage.model.calls[-1][:, 0].tolist() == list(range(8))


# --- waiting, where the policy asks for it ---

PATIENT = BatchingPolicy(max_batch_rows=4, max_wait_seconds=0.010)


def test_with_a_wait_the_first_request_is_held_back_for_company() -> None:
    with Stage(PATIENT, inline=True) as stage:
        first = stage.ask([1.0])
        stage.clock.advance(0.006)
        second = stage.ask([2.0])
        stage.clock.advance(0.003)
        assert stage.model.rows == []
        stage.clock.advance(0.0011)
        assert stage.model.rows == [2]
        assert (first.sums, second.sums) == ([1.0], [2.0])
        assert stage.batcher.statistics.releases[Release.WAITED] == 1
        assert stage.clock.timers == 0


def test_who_is_held_back_keeps_its_place() -> None:
    with Stage(PATIENT, inline=True) as stage:
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            stage.ask([value])
            stage.clock.advance(0.001)
        assert [call[:, 0].tolist() for call in stage.model.calls] == [[1.0, 2.0, 3.0, 4.0]]
        stage.clock.advance(0.010)
        assert stage.model.calls[-1].tolist() == [[5.0]]


def test_who_is_held_back_keeps_its_place_before_who_comes_back_from_the_door() -> None:
    """A request that expires while the batch is formed, and is asked again at once, goes to the end."""
    with Stage(PATIENT, inline=True) as stage:
        stage.ask([1.0], within=0.001, then=lambda: stage.ask([3.0]))
        stage.ask([2.0])
        stage.clock.spend(0.002)
        stage.turn()
        stage.ask([4.0, 5.0])
        stage.turn()
        assert [call[:, 0].tolist() for call in stage.model.calls] == [[2.0, 3.0, 4.0, 5.0]]


def test_a_full_batch_ends_the_wait() -> None:
    with Stage(PATIENT, inline=True) as stage:
        stage.ask([1.0] * 3)
        stage.clock.advance(0.001)
        assert stage.model.rows == []
        stage.ask([2.0])
        stage.turn()
        assert stage.model.rows == [4]


def test_a_deadline_ends_the_wait_in_time_for_the_run() -> None:
    with Stage(PATIENT) as stage:
        stage.knows_cost(0.003, 0.0)
        hasty = stage.ask([1.0], within=0.008)
        stage.clock.advance(0.0049)
        assert stage.model.rows == []
        stage.clock.advance(0.0002)
        stage.turn(enter=1)
        stage.clock.advance(0.0028)
        stage.finish()
        assert hasty.sums == [1.0]
        assert stage.batcher.statistics.releases[Release.DEADLINE] == 1


def test_of_two_layouts_that_wait_each_is_looked_at_in_its_own_time() -> None:
    """One timer serves all layouts: the one that came later must not push the earlier one's time away."""
    with Stage(PATIENT, inline=True) as stage:
        early = stage.ask([[1.0, 1.0]])
        stage.clock.advance(0.008)
        late = stage.ask([[1.0, 1.0, 1.0]])
        stage.clock.advance(0.0021)
        assert early.sums == [2.0]
        assert late.settlements == []
        stage.clock.advance(0.008)
        assert late.sums == [3.0]


def test_a_younger_layout_with_a_deadline_is_looked_at_before_an_older_one_without() -> None:
    with Stage(PATIENT, inline=True) as stage:
        patient = stage.ask([[1.0, 1.0]])
        hasty = stage.ask([[1.0, 1.0, 1.0]], within=0.002)
        stage.turn()
        assert stage.clock.timers == 2  # the one for the wait, and the one for the deadline
        stage.clock.advance(0.0021)
        assert hasty.settlements
        assert patient.settlements == []
        stage.clock.advance(0.008)
        assert patient.sums == [2.0]


def test_who_is_gone_when_the_wait_is_over_is_forgotten() -> None:
    with Stage(PATIENT, inline=True) as stage:
        gone = stage.ask([1.0])
        stage.turn()
        gone.gone = True
        stage.clock.advance(0.02)
        assert stage.model.rows == []
        assert stage.idle()
        assert stage.clock.timers == 0


# --- layouts ---


def test_rows_of_different_shapes_do_not_share_a_batch_and_the_oldest_goes_first() -> None:
    with Stage() as stage:
        stage.occupy()
        first, second, third = stage.ask([[1.0, 1.0]]), stage.ask([[1.0, 1.0, 1.0]]), stage.ask([[2.0, 2.0]])
        stage.finish(enter=1)
        stage.finish(enter=1)
        stage.finish()
        assert [call.shape for call in stage.model.calls[1:]] == [(2, 2), (1, 3)]
        assert (first.sums, second.sums, third.sums) == ([2.0], [3.0], [4.0])


def test_of_several_layouts_the_one_whose_first_request_waits_longest_goes_first() -> None:
    with Stage(BatchingPolicy(max_batch_rows=2)) as stage:
        stage.occupy()
        pairs = [stage.ask([[1.0, 1.0]]) for _ in range(4)]
        stage.clock.advance(0.001)
        triple = stage.ask([[1.0, 1.0, 1.0]])
        stage.clock.advance(0.001)
        late_pair = stage.ask([[2.0, 2.0]])
        for enter in (1, 1, 1, 1, 0):
            stage.finish(enter=enter)
        assert [call.shape for call in stage.model.calls[1:]] == [(2, 2), (2, 2), (1, 3), (1, 2)]
        assert all(one.answered_right for one in [*pairs, triple, late_pair])


def test_with_pad_variable_length_they_do_share_one() -> None:
    with Stage(BatchingPolicy(pad_variable_length=True)) as stage:
        stage.occupy()
        asked = [stage.ask([[1.0, 1.0]]), stage.ask([[1.0, 1.0, 1.0]] * 2), stage.ask([[5.0]])]
        stage.finish(enter=1)
        stage.finish()
        assert stage.model.calls[-1].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1], [5, 0, 0]]
        assert all(one.answered_right for one in asked)


def test_parts_whose_neighbours_were_longer_are_joined_filled_up() -> None:
    """A model that answers as many values as it was given, a split request, and a longer neighbour."""
    echo = Signature(DEFAULT_SIGNATURE, SUMS.inputs, (TensorSpec("y", FLOAT, (None,)),))
    model = Model(echo, answer=lambda inputs: {"y": inputs["x"] * 2})
    policy = BatchingPolicy(max_batch_rows=2, pad_variable_length=True)
    with Stage(policy, model=model, inline=True) as stage:
        split, longer = stage.ask([[1.0], [2.0], [3.0]]), stage.ask([[7.0, 8.0]])
        stage.turn()
        assert split.sums == [[2, 0], [4, 0], [6, 0]]
        assert longer.sums == [[14, 16]]


def test_as_many_layouts_as_clients_care_to_send_are_all_served() -> None:
    with Stage(inline=True) as stage:
        for _ in range(2):
            asked = [stage.ask(np.ones((1, length), np.float32)) for length in range(1, 201)]
            stage.turn()
            assert all(one.answered_right for one in asked)
        assert stage.idle()
        assert len(stage.batcher._lanes) <= 201  # lanes are kept by the number, not for ever


def test_layouts_that_are_refused_leave_nothing() -> None:
    """While a model hangs nothing is dispatched, and each shape that a client tried left a lane."""
    with Stage(BatchingPolicy(instances=1, max_queue_rows=1)) as stage:
        stage.ask([[1.0]])
        stage.turn()
        stage.ask([[2.0]])
        for length in range(2, 500):
            assert isinstance(stage.ask(np.ones((1, length), np.float32)).error, Overloaded)
        assert len(stage.batcher._lanes) <= 64


# --- where a batch runs ---


def test_a_cheap_batch_runs_where_it_stands_and_a_dear_one_in_a_thread() -> None:
    model = Model()
    with Stage(model=model) as stage:
        stage.batcher._inline_seconds = 0.001
        stage.knows_cost(0.0, 0.0001)
        dear = stage.ask([1.0] * 100)
        stage.turn(enter=1)
        assert len(stage.threads()) == 1
        stage.finish()
        model.gated = False
        stage.knows_cost(0.0, 0.0001)
        cheap = stage.ask([2.0])
        stage.turn()
        assert cheap.sums == [2.0]
        assert dear.answered_right


def test_the_first_batch_of_unknown_cost_never_runs_in_the_serving_thread() -> None:
    with Stage() as stage:
        stage.batcher._inline_seconds = 10.0
        stage.ask([1.0])
        stage.turn(enter=1)
        assert len(stage.threads()) == 1


def test_between_batches_that_run_inline_others_get_their_turn() -> None:
    """An inline batch gives way: what else is ready in the serving thread runs before the next one."""
    with Stage(BatchingPolicy(max_batch_rows=1), inline=True) as stage:
        order: list[str] = []
        for value in (1.0, 2.0, 3.0):
            stage.ask([value], then=lambda: order.append("answer"))
        stage.clock.call_soon(order.append, "other")
        stage.turn()
        assert order == ["answer", "other", "answer", "answer"]


# --- coming back ---


@pytest.mark.parametrize("inline", [True, False])
def test_who_is_answered_may_submit_again_at_once(inline: bool) -> None:
    with Stage(inline=inline) as stage:
        chain = [stage.ask([0.0], then=lambda: chain.append(stage.ask([1.0])))]
        stage.turn(enter=0 if inline else 1)
        if not inline:
            stage.finish(enter=1)
            stage.finish()
        assert [one.sums for one in chain] == [[0.0], [1.0]]
        assert stage.idle()


def test_who_is_told_of_the_deadline_may_submit_again_at_once() -> None:
    """The sweep over expired requests goes through queues that its own answers make longer."""
    with Stage() as stage:
        stage.occupy()
        again = []
        expiring = [
            stage.ask([1.0], within=0.005, then=lambda: again.append(stage.ask([2.0], within=0.003)))
            for _ in range(3)
        ]
        stage.ask([[4.0, 4.0]])
        stage.clock.advance(0.006)
        assert [one.error.message for one in expiring] == [expiring[0].error.message] * 3
        assert len(again) == 3
        stage.clock.advance(0.004)
        assert all(one.error for one in again)
        stage.finish(enter=1)
        stage.finish()
        assert not stage.model.ran(2.0)
        assert stage.idle()


def test_idleness_is_reported_once_each_time_it_is_asked_for() -> None:
    with Stage(inline=True) as stage:
        idle: list[str] = []
        stage.batcher.on_idle = lambda: idle.append("idle")
        stage.ask([1.0])
        stage.ask([2.0])
        stage.turn()
        stage.ask([3.0])
        stage.turn()
        assert idle == ["idle"]
