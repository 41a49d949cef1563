"""How many batches run side by side, of those that a Batcher dispatches."""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import Tensors
from headrace.batching.compute_threads import say_waiting
from tests.unit.batching.stage import Model, Stage


def use_one(stage: Stage) -> None:
    """As if one instance had been measured to be best."""
    instances = stage.batcher.instances
    assert instances._limit is not None
    instances._limit.in_use = instances._limit.allowed = instances.in_use = instances.allowed = 1


def test_a_model_whose_calls_do_not_overlap_gets_one_at_a_time_and_larger_batches() -> None:
    """Eight clients, and calls that take 10 ms of something that all of them share."""
    with Stage(instances=2) as stage:
        entered = 0

        def settle() -> None:
            nonlocal entered
            stage.turn()
            running = len(stage.batcher._running)
            for _ in range(running - entered):
                stage.model.await_entered()
            entered = running

        def one_is_computed() -> None:
            nonlocal entered
            stage.clock.spend(0.010)
            stage.model.let_pass()
            assert stage.clock.arrived.acquire(timeout=10)
            entered -= 1
            settle()

        while stage.batcher.instances.in_use == 2 and len(stage.model.calls) < 1000:
            while stage.batcher.outstanding < 8:  # one after the other: who finds an idle instance goes alone
                stage.ask([1.0])
                settle()
            one_is_computed()
        assert stage.batcher.instances.in_use == stage.batcher.instances.allowed == 1
        while not stage.idle():
            one_is_computed()
        waiting = [stage.ask([1.0]) for _ in range(2)]
        settle()
        stage.ask([2.0])
        settle()
        assert entered == 1
        while not stage.idle():
            one_is_computed()
        assert all(one.answered_right for one in waiting)


def test_no_more_batches_run_than_instances_are_in_use() -> None:
    with Stage(instances=2) as stage:
        use_one(stage)
        stage.occupy()
        waiting = stage.ask([1.0])
        stage.turn()
        assert stage.model.rows == [1]
        stage.finish(enter=1)
        stage.finish()
        assert waiting.sums == [1.0]


def test_instances_that_are_not_used_help_out_when_calls_hang() -> None:
    with Stage(instances=3) as stage:
        use_one(stage)
        hanging = stage.occupy()
        waiting = stage.ask([1.0])
        stage.clock.advance(0.4)
        assert stage.batcher.instances.allowed == 1
        stage.clock.advance(0.2)
        assert stage.batcher.instances.in_use == stage.batcher.instances.allowed == 3
        stage.model.await_entered()
        assert stage.model.rows == [1, 1]
        stage.finish(2)
        assert waiting.sums == [1.0]
        assert hanging[0].sums == [-1.0]
        assert stage.clock.timers == 0


def test_calls_that_end_leave_the_instances_as_they_are() -> None:
    """One call after the other, none of which takes long; at last one hangs."""
    with Stage(instances=2) as stage:
        use_one(stage)
        stage.occupy()
        for _ in range(10):
            stage.clock.advance(0.3)
            stage.ask([1.0])
            stage.finish(enter=1)
            assert stage.batcher.instances.allowed == 1
        assert stage.model.rows == [1] * 11
        stage.clock.advance(100.0)
        assert stage.batcher.instances.in_use == 2
        stage.finish()
        assert stage.clock.timers == 0


def test_no_timer_is_left_when_the_batcher_is_closed() -> None:
    with Stage(instances=2) as stage:
        use_one(stage)
        stage.occupy()
        assert stage.clock.timers == 1
        stage.batcher.close()
        assert stage.clock.timers == 0


def test_a_model_that_waits_for_another_one_has_all_of_its_instances() -> None:
    """It may wait for itself: with fewer of them, nobody would go on."""

    def answer(inputs: Tensors) -> Tensors:
        say_waiting()
        return {"y": inputs["x"].sum(axis=1, dtype=np.float32)}

    with Stage(instances=2, model=Model(answer=answer)) as stage:
        use_one(stage)
        stage.occupy()
        waiting = stage.ask([1.0])
        stage.turn()
        stage.model.let_pass()
        for _ in range(2):  # that it waits, and that it has been computed
            assert stage.clock.arrived.acquire(timeout=10)
        stage.turn(enter=1)
        assert stage.batcher.instances.in_use == stage.batcher.instances.allowed == 2
        stage.finish()
        assert waiting.sums == [1.0]
